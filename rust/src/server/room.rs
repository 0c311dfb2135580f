//! Accounts for the bytes that the loop has sent and clients have not taken.
//!
//! The loop adds a response to its client's account before it hands the response over, so that it
//! knows at once whether there is room for the next one; the network thread subtracts the bytes
//! that have left, once per pass. Messages of streams have a separate account: every stream has its
//! own back-pressure, and no call waits for them unless all clients together leave too much.

use crate::server::shared::{Command, ConnectionShared, Limits, Shared};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// The bytes that one connection's client has not taken.
#[derive(Default)]
pub struct Account {
    answers: AtomicUsize,
    streams: AtomicUsize,
    /// Bytes that the client has ever taken, and that number at the last check.
    taken: AtomicUsize,
    taken_before: AtomicUsize,
    /// The client left more than it may at the last check.
    was_behind: AtomicBool,
}

impl Account {
    pub fn answers(&self) -> usize {
        self.answers.load(Ordering::SeqCst)
    }

    pub fn unread(&self) -> usize {
        self.answers() + self.streams.load(Ordering::SeqCst)
    }

    /// Bytes that were taken since the last check.
    fn progress(&self) -> usize {
        let taken = self.taken.load(Ordering::Relaxed);
        taken.wrapping_sub(self.taken_before.swap(taken, Ordering::Relaxed))
    }
}

/// The sum of all accounts.
#[derive(Default)]
pub struct Room {
    total: AtomicUsize,
    /// The loop waits for room.
    wanted: AtomicBool,
    /// There is room again, and the loop has not noticed it yet.
    news: AtomicBool,
    look: Mutex<Option<Look>>,
}

impl Room {
    /// Bytes that all clients together have not taken.
    pub fn unread(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Whether any connection may be without room.
    fn is_scarce(&self, limits: &Limits) -> bool {
        self.total.load(Ordering::SeqCst) > limits.connection_unread_bytes_max
    }

    /// Whether a response to a client has room. Long ones wait while all clients together leave too
    /// much unread; others wait while their own client is behind, or at twice the limit.
    pub fn has_room(&self, limits: &Limits, account: &Account, is_long: bool) -> bool {
        if self.is_free(limits, account, is_long) {
            return true;
        }
        self.wanted.store(true, Ordering::SeqCst);
        // The network thread may have made room before it could see that the loop waits for it.
        self.is_free(limits, account, is_long)
    }

    fn is_free(&self, limits: &Limits, account: &Account, is_long: bool) -> bool {
        let total = self.total.load(Ordering::SeqCst);
        if total <= limits.unread_bytes_max {
            account.answers() <= limits.connection_unread_bytes_max
        } else if is_long || total > 2 * limits.unread_bytes_max {
            false
        } else {
            account.unread() <= limits.stream_writable_bytes.min(limits.connection_unread_bytes_max)
        }
    }

    /// Adds the bytes of a response or message that is about to be handed over.
    pub fn give(&self, account: &Account, (answers, streams): (usize, usize)) {
        account.answers.fetch_add(answers, Ordering::SeqCst);
        account.streams.fetch_add(streams, Ordering::SeqCst);
        self.total.fetch_add(answers + streams, Ordering::SeqCst);
    }

    /// Subtracts all bytes of a connection that is gone.
    pub fn close(&self, shared: &Shared, account: &Account) {
        self.total.fetch_sub(account.unread(), Ordering::SeqCst);
        self.tell(shared);
    }

    /// Whether the loop has to notice new room; the loop checks this before it sleeps.
    pub fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::SeqCst)
    }

    /// Makes the loop check again before it sleeps, if it waits for room; returns whether it does.
    pub fn remind(&self) -> bool {
        let is_wanted =
            self.wanted.load(Ordering::SeqCst) && self.wanted.swap(false, Ordering::SeqCst);
        if is_wanted {
            self.news.store(true, Ordering::SeqCst);
        }
        is_wanted
    }

    /// Wakes the loop if it waits for room.
    fn tell(&self, shared: &Shared) {
        if self.remind() {
            shared.wakeup.note();
        }
    }

    /// Whether a connection's next call may be handed out.
    pub fn has_room_for_call(&self, limits: &Limits, connection: &ConnectionShared) -> bool {
        if connection.http_calls.load(Ordering::Relaxed) >= limits.http_calls_max {
            self.wanted.store(true, Ordering::SeqCst);
            return false;
        }
        !self.is_scarce(limits) || self.has_room(limits, &connection.account, false)
    }

    /// Finds the clients to disconnect: those that are behind and take nothing, and, while all
    /// clients together leave too much, the slowest ones, until half of the limit is free.
    ///
    /// Either must also have been true at the last check, at least `unread_max` ago.
    pub fn offenders(&self, shared: &Shared) -> Vec<u32> {
        let limits = &shared.limits;
        let mut look = self.look.lock();
        if !self.is_scarce(limits) {
            *look = None;
            return Vec::new();
        }
        let now = Instant::now();
        let last = match &*look {
            Some(last) if now < last.at + limits.unread_max => return Vec::new(),
            last => last.as_ref().map(|last| last.was_over),
        };
        let total = self.total.load(Ordering::SeqCst);
        let is_over = total > limits.unread_bytes_max;
        *look = Some(Look { at: now, was_over: is_over });
        let mut excess = match last {
            Some(true) if is_over => total - limits.unread_bytes_max / 2,
            _ => 0,
        };
        let mut slow = Vec::new();
        let mut ended = Vec::new();
        for (number, connection) in shared.inbox.lock().connections() {
            let account = &connection.account;
            let (taken, unread) = (account.progress(), account.unread());
            let is_behind = account.answers() > limits.connection_unread_bytes_max;
            let was_behind = account.was_behind.swap(is_behind, Ordering::Relaxed);
            if last.is_some() && is_behind && was_behind && taken == 0 {
                excess = excess.saturating_sub(unread);
                ended.push(number);
            } else if unread > taken {
                slow.push((taken, unread, number));
            }
        }
        // Start with the clients that would need longest to take the rest.
        slow.sort_by_key(|(taken, unread, _)| std::cmp::Reverse(unread / (taken + 1)));
        for (_, unread, number) in slow {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(unread);
            ended.push(number);
        }
        ended
    }
}

/// The last check for clients that are behind.
struct Look {
    at: Instant,
    was_over: bool,
}

/// Bytes that a connection's driver was given and has not yet subtracted from the account.
#[derive(Default)]
pub struct Ledger {
    answers: usize,
    streams: usize,
}

impl Ledger {
    pub fn note(&mut self, command: &Command) {
        let (answers, streams) = command.load();
        self.answers += answers;
        self.streams += streams;
    }

    /// Subtracts the bytes that have left: all but `here`, the bytes that still wait.
    pub fn settle(&mut self, shared: &Shared, account: &Account, here: (usize, usize)) {
        // A unary call may be answered like a stream; its bytes were then counted as a stream's.
        let answers = self.answers.saturating_sub(here.0);
        let streams = self.streams.saturating_sub(here.1);
        if answers + streams > 0 {
            self.answers -= answers;
            self.streams -= streams;
            account.answers.fetch_sub(answers, Ordering::SeqCst);
            account.streams.fetch_sub(streams, Ordering::SeqCst);
            account.taken.fetch_add(answers + streams, Ordering::Relaxed);
            shared.room.total.fetch_sub(answers + streams, Ordering::SeqCst);
            shared.room.tell(shared);
        }
    }
}
