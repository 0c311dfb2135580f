//! What clients leave unread: accounts of what the loop has sent them and they have not taken.
//!
//! The loop adds to an account before it hands an answer over, so that it knows at once whether
//! there is room for the next one; the network thread subtracts what has left, once per pass.
//! Messages of streams have an account of their own: each stream is held back by itself, and no
//! call waits for them unless the server as a whole has too much.

use crate::shared::{Command, ConnectionShared, Limits, Shared};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// What one connection's client has not taken.
#[derive(Default)]
pub struct Account {
    answers: AtomicUsize,
    streams: AtomicUsize,
    /// How much it ever took, and how much that was at the last check.
    taken: AtomicUsize,
    taken_before: AtomicUsize,
    /// It left more than it may at the last check.
    was_behind: AtomicBool,
}

impl Account {
    pub fn answers(&self) -> usize {
        self.answers.load(Ordering::SeqCst)
    }

    pub fn unread(&self) -> usize {
        self.answers() + self.streams.load(Ordering::SeqCst)
    }

    /// What was taken since the last check.
    fn progress(&self) -> usize {
        let taken = self.taken.load(Ordering::Relaxed);
        taken.wrapping_sub(self.taken_before.swap(taken, Ordering::Relaxed))
    }
}

/// All accounts together.
#[derive(Default)]
pub struct Room {
    total: AtomicUsize,
    /// The loop waits for room.
    wanted: AtomicBool,
    /// There is room again, and the loop has not been told yet.
    news: AtomicBool,
    look: Mutex<Option<Look>>,
}

impl Room {
    /// What all clients have not taken.
    pub fn unread(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Whether any connection may be without room.
    fn is_scarce(&self, limits: &Limits) -> bool {
        self.total.load(Ordering::SeqCst) > limits.connection_unread_bytes_max
    }

    /// Whether an answer to a client may be made. A long one waits as soon as all clients together
    /// leave too much unread; others wait only if their own client is behind.
    pub fn has_room(&self, limits: &Limits, account: &Account, is_long: bool) -> bool {
        if self.is_free(limits, account, is_long) {
            return true;
        }
        self.wanted.store(true, Ordering::SeqCst);
        // Whoever made room meanwhile may not have seen that the loop waits for it.
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

    /// Adds what the loop is about to hand over.
    pub fn give(&self, account: &Account, (answers, streams): (usize, usize)) {
        account.answers.fetch_add(answers, Ordering::SeqCst);
        account.streams.fetch_add(streams, Ordering::SeqCst);
        self.total.fetch_add(answers + streams, Ordering::SeqCst);
    }

    /// Subtracts everything of a connection that is gone.
    pub fn close(&self, shared: &Shared, account: &Account) {
        self.total.fetch_sub(account.unread(), Ordering::SeqCst);
        self.tell(shared);
    }

    /// Whether there is new room that the loop has to know of; asked when it goes to sleep.
    pub fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::SeqCst)
    }

    /// Makes the loop check again before it sleeps, if it waits for room.
    pub fn remind(&self) -> bool {
        let is_wanted =
            self.wanted.load(Ordering::SeqCst) && self.wanted.swap(false, Ordering::SeqCst);
        if is_wanted {
            self.news.store(true, Ordering::SeqCst);
        }
        is_wanted
    }

    /// Tells the loop that there is more room, if it waits for some.
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

    /// Finds the clients to end: those that are behind and take nothing, and while all together
    /// leave too much, those that take least of what they have, until half of the limit is free.
    ///
    /// A client is ended only if the same was true at the last check, at least `unread_max` ago.
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
        // First those that would need longest for the rest.
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

/// What a connection's driver was given and has not yet subtracted from its account.
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

    /// Subtracts what has left: all but what is still here.
    pub fn settle(&mut self, shared: &Shared, account: &Account, here: (usize, usize)) {
        // A unary call may be answered like a stream, and was then counted as one.
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
