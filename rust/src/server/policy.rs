//! Limits how often a client may ping and cancel.
//!
//! The rules for pings are those of grpc-go, whose clients understand `too_many_pings`.

use std::time::{Duration, Instant};

/// Early pings that are tolerated; one more ends the connection.
const STRIKES_MAX: u32 = 2;

/// Shortest time between pings of a client that has no calls.
const IDLE_PING_MIN: Duration = Duration::from_secs(2 * 3600);

const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Pings {
    strikes: u32,
    last: Option<Instant>,
}

impl Pings {
    /// Counts pings that arrived now; true if too many of them came early.
    pub fn are_too_many(
        &mut self,
        (forgiven, pings): (bool, u32),
        has_calls: bool,
        interval_min: Duration,
        now: Instant,
    ) -> bool {
        if forgiven {
            (self.strikes, self.last) = (0, Some(now));
        }
        let interval_min = if has_calls { interval_min } else { IDLE_PING_MIN };
        for _ in 0..pings {
            self.strikes += u32::from(self.last.is_some_and(|last| now < last + interval_min));
            self.last = Some(now);
        }
        self.strikes > STRIKES_MAX
    }
}

/// Counts calls that were cancelled soon after they started, second by second.
///
/// Stream numbers ascend, so a call is young if its number is above the one that was highest at the
/// start of the previous second.
pub struct Resets {
    since: Instant,
    old: u32,
    highest: u32,
    debt: usize,
}

impl Resets {
    pub fn new(now: Instant) -> Resets {
        Resets { since: now, old: 0, highest: 0, debt: 0 }
    }

    pub fn answered(&mut self) {
        self.debt = self.debt.saturating_sub(1);
    }

    /// Counts calls that were cancelled now; true if there are too many in this second.
    ///
    /// `highest` is the highest stream number before this pass.
    pub fn are_too_many(&mut self, resets: &[u32], highest: u32, max: usize, now: Instant) -> bool {
        let passed = now - self.since;
        if passed > SECOND {
            self.old = if passed > 2 * SECOND { highest } else { self.highest };
            (self.since, self.highest, self.debt) = (now, highest, 0);
        }
        self.debt += resets.iter().filter(|stream| **stream > self.old).count();
        self.debt > max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: Duration = Duration::from_secs(5);

    #[test]
    fn pings_that_come_too_early_three_times() {
        let start = Instant::now();
        let mut pings = Pings::default();
        for number in 0..3 {
            assert!(!pings.are_too_many((false, 1), true, FIVE, start + number * SECOND));
        }
        assert!(!pings.are_too_many((true, 0), true, FIVE, start + 3 * SECOND));
        assert!(!pings.are_too_many((false, 2), true, FIVE, start + 4 * SECOND));
        assert!(!pings.are_too_many((false, 1), true, FIVE, start + 9 * SECOND));
        assert!(pings.are_too_many((false, 1), false, FIVE, start + 20 * SECOND));
    }

    #[test]
    fn only_young_calls_of_one_second_count() {
        let start = Instant::now();
        let mut resets = Resets::new(start);
        let streams: Vec<u32> = (0..10).map(|number| 2 * number + 1).collect();
        assert!(!resets.are_too_many(&streams, 0, 10, start));
        assert!(resets.are_too_many(&[21], 19, 10, start));
        let later = start + 3 * SECOND;
        assert!(!resets.are_too_many(&streams, 30, 0, later));
        assert!(resets.are_too_many(&[31], 31, 0, later));
        resets.answered();
        assert!(!resets.are_too_many(&[29], 31, 0, later));
    }
}
