//! Sliding log: admits when the cost admitted in (now − period, now] + cost ≤ units, exactly.
//!
//! The only algorithm whose state grows: a [`Log`] remembers each instant at which something was
//! admitted, at most [`MAX_ENTRIES`] of them. No more than `units` pass in any period.

use std::collections::VecDeque;

use super::{Outcome, Retry};
use crate::model::{
    limit::Quota,
    time::{Span, Timestamp},
};

/// The most instants that a log remembers, 16 bytes each. What is admitted beyond that is counted
/// together with the latest one and leaves with the later of the two: never too early. A limit of
/// at most this many units is exact.
pub const MAX_ENTRIES: usize = 10_000;

/// What was admitted and when. Nothing in it depends on the limit, so that a changed limit needs no
/// translation: the log says what was used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// In the order of time, each instant once.
    entries: VecDeque<Entry>,
    /// Running total before the first entry.
    base: u64,
}

/// All that was admitted at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Timestamp,
    /// Running total including this entry. It wraps; differences within a log are exact, because
    /// all of a log together is at most `u64::MAX`.
    total: u64,
}

impl Log {
    /// From here on the log is as good as an empty one and may be forgotten.
    pub fn until(&self, quota: Quota) -> Timestamp {
        let latest = self.entries.back();
        latest.map_or(Timestamp::ZERO, |entry| entry.at + quota.period())
    }

    /// What was admitted and when, in the order of time.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Timestamp, u64)> {
        let mut before = self.base;
        self.entries.iter().map(move |entry| {
            let cost = entry.total.wrapping_sub(before);
            before = entry.total;
            (entry.at, cost)
        })
    }

    /// Adds what was admitted at an instant; one before the latest counts as at that.
    pub fn note(&mut self, at: Timestamp, cost: u64) {
        let latest = self.entries.back().map_or(at, |entry| entry.at);
        self.grow();
        self.push(at.max(latest), cost);
    }

    /// The log as it stands at `at`.
    fn read(&self, quota: Quota, now: Timestamp) -> Live {
        let latest = self.entries.back().map_or(now, |entry| entry.at);
        let at = now.max(latest);
        let left = |entry: &Entry| entry.at + quota.period() <= at;
        let gone = self.entries.partition_point(left);
        let before = match gone.checked_sub(1) {
            Some(last) => self.entries.get(last).map_or(self.base, |e| e.total),
            None => self.base,
        };
        let total = self.entries.back().map_or(self.base, |e| e.total);
        let ahead = now.until(at);
        Live {
            at,
            gone,
            before,
            used: total.wrapping_sub(before),
            ahead: if ahead <= quota.period() {
                ahead
            } else {
                Span::ZERO
            },
        }
    }

    /// When `excess` units of what is used have left, as a time after `live.at`.
    fn leaves(&self, quota: Quota, live: &Live, excess: u64) -> Span {
        let target = live.before.wrapping_sub(self.base).saturating_add(excess);
        let short = |entry: &Entry| entry.total.wrapping_sub(self.base) < target;
        let last = self.entries.get(self.entries.partition_point(short));
        last.map_or(Span::ZERO, |entry| live.at.until(entry.at + quota.period()))
    }

    /// Bytes that its entries take.
    pub fn bytes(&self) -> usize {
        bytes(self.entries.capacity())
    }

    /// Bytes that the next instant takes in addition; none while there is room for it.
    pub fn growth(&self) -> usize {
        let capacity = self.entries.capacity();
        if self.entries.len() < capacity || capacity >= MAX_ENTRIES {
            0
        } else {
            bytes(more(capacity))
        }
    }

    /// Makes room as [`Log::growth`] says.
    pub fn grow(&mut self) {
        let capacity = self.entries.capacity();
        if self.growth() > 0 {
            self.entries.reserve_exact(more(capacity));
        }
    }

    fn push(&mut self, at: Timestamp, cost: u64) {
        // A log that was not let grow is as full as one that must not.
        let room = self.entries.capacity().min(MAX_ENTRIES);
        let full = self.entries.len() >= room && !self.entries.is_empty();
        let total = match self.entries.back_mut() {
            Some(latest) if latest.at == at || full => {
                latest.at = at;
                latest.total = latest.total.wrapping_add(cost);
                return;
            }
            Some(latest) => latest.total.wrapping_add(cost),
            None => self.base.wrapping_add(cost),
        };
        self.entries.push_back(Entry { at, total });
    }
}

/// What so many entries take.
const fn bytes(entries: usize) -> usize {
    entries.saturating_mul(size_of::<Entry>())
}

/// By how many entries a log grows: by half, at least as a `VecDeque` begins.
fn more(capacity: usize) -> usize {
    (capacity / 2)
        .max(4)
        .min(MAX_ENTRIES.saturating_sub(capacity))
}

/// What of a log still counts.
struct Live {
    /// The instant this holds at: `now`, or the latest entry when `now` lies before it.
    at: Timestamp,
    /// Entries that have left.
    gone: usize,
    /// Running total of those.
    before: u64,
    /// Units that have not.
    used: u64,
    /// How long until the clock has caught up with `at`; zero if it stepped back by more than a
    /// period, because then the log is moved to `now`.
    ahead: Span,
}

/// What `cost` would be told at `now`. Writes nothing.
pub fn look(quota: Quota, log: &Log, now: Timestamp, cost: u64) -> Outcome {
    let limit = quota.units();
    let live = log.read(quota, now);
    let wanted = cost.max(1);
    let left = limit.saturating_sub(live.used);
    let allowed = wanted <= left;
    let taken = if allowed { cost } else { 0 };
    let retry = if wanted > limit {
        Retry::Never
    } else if allowed {
        Retry::After(Span::ZERO)
    } else {
        let excess = live.used.saturating_sub(limit.saturating_sub(wanted));
        let wait = log.leaves(quota, &live, excess);
        Retry::After(live.ahead.saturating_add(wait))
    };
    let reset = if taken > 0 {
        live.ahead.saturating_add(quota.period())
    } else {
        let wait = log.leaves(quota, &live, live.used);
        live.ahead.saturating_add(wait)
    };
    Outcome {
        allowed,
        used_before: live.used,
        remaining: left.saturating_sub(taken),
        reset,
        retry,
        delay: Span::ZERO,
        more: None,
    }
}

/// Takes `cost` if it passes at `now`. `cost` 0 never writes.
pub fn take(quota: Quota, log: &mut Log, now: Timestamp, cost: u64) -> Outcome {
    if cost > 0 {
        settle(quota, log, now);
        log.grow();
    }
    take_in_place(quota, log, now, cost)
}

/// [`take`] from a settled log without growing it: where there is no room for another instant, the
/// latest stands for both, as beyond [`MAX_ENTRIES`].
pub fn take_in_place(quota: Quota, log: &mut Log, now: Timestamp, cost: u64) -> Outcome {
    let outcome = look(quota, log, now, cost);
    if outcome.allowed && cost > 0 {
        let latest = log.entries.back().map_or(now, |entry| entry.at);
        log.push(now.max(latest), cost);
    }
    outcome
}

/// Gives back up to `cost` units, the oldest first: whichever of them it was, no period ever holds
/// more than the limit. Returns what was freed.
pub fn give_back(quota: Quota, log: &mut Log, now: Timestamp, cost: u64) -> u64 {
    settle(quota, log, now);
    let freed = cost.min(log.read(quota, now).used);
    let base = log.base.wrapping_add(freed);
    let old = log.base;
    let paid = |entry: &Entry| entry.total.wrapping_sub(old) <= freed;
    let gone = log.entries.partition_point(paid);
    log.entries.drain(..gone);
    log.base = base;
    freed
}

/// Brings a log to the time line of `now`: forgets what has left; if the clock stepped back by more
/// than a period, moves all that has not to `now`.
pub fn settle(quota: Quota, log: &mut Log, now: Timestamp) {
    let live = log.read(quota, now);
    log.entries.drain(..live.gone);
    log.base = live.before;
    let (length, capacity) = (log.entries.len(), log.entries.capacity());
    if length < capacity / 8 {
        log.entries.shrink_to(length.saturating_mul(2).max(4));
    }
    let ahead = now.until(live.at);
    if ahead > quota.period() {
        for entry in &mut log.entries {
            entry.at = entry.at - ahead;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);
    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn later(nanos: u64) -> Timestamp {
        START + Span::from_nanos(nanos)
    }

    #[test]
    fn one_instant_is_one_entry() {
        let quota = Quota::per(1_000, SECOND).unwrap();
        let mut log = Log::default();
        for _ in 0..600 {
            assert!(take(quota, &mut log, START, 1).allowed);
        }
        assert_eq!(log.entries.len(), 1);
        let refused = take(quota, &mut log, later(5), 401);
        assert_eq!(refused.retry, Retry::After(Span::from_nanos(999_999_995)));
        assert_eq!(log.until(quota), START + SECOND);
    }

    #[test]
    fn what_is_exactly_a_period_old_has_left() {
        let quota = Quota::per(1, SECOND).unwrap();
        let mut log = Log::default();
        assert!(take(quota, &mut log, START, 1).allowed);
        assert!(!look(quota, &log, later(999_999_999), 1).allowed);
        assert!(take(quota, &mut log, later(1_000_000_000), 1).allowed);
        assert_eq!(log.entries.len(), 1);
    }

    #[test]
    fn beyond_its_bound_a_log_never_lets_too_much_through() {
        let limit = u64::try_from(MAX_ENTRIES).unwrap() + 500;
        let quota = Quota::per(limit, SECOND).unwrap();
        let mut log = Log::default();
        for n in 0..limit {
            assert!(take(quota, &mut log, later(n), 1).allowed);
        }
        assert_eq!(log.entries.len(), MAX_ENTRIES);
        assert!(!look(quota, &log, later(limit), 1).allowed);
        // The first has left; the 501 that share an entry stay until the last of them leaves.
        assert!(look(quota, &log, later(1_000_000_000), 1).allowed);
        assert!(!look(quota, &log, later(1_000_000_000), 2).allowed);
        let but_one = later(1_000_000_000 + limit - 2);
        assert_eq!(look(quota, &log, but_one, 1).used_before, 501);
        let last = later(1_000_000_000 + limit - 1);
        assert_eq!(look(quota, &log, last, 1).used_before, 0);
    }

    #[test]
    fn a_log_that_must_not_grow_never_lets_too_much_through() {
        let quota = Quota::per(10, SECOND).unwrap();
        let mut log = Log::default();
        assert!(take(quota, &mut log, START, 1).allowed);
        let bytes = log.bytes();
        for n in 1..10 {
            settle(quota, &mut log, later(n));
            assert!(take_in_place(quota, &mut log, later(n), 1).allowed);
        }
        assert_eq!((log.entries.len(), log.bytes()), (4, bytes));
        assert!(log.growth() > 0);
        assert!(!look(quota, &log, later(10), 1).allowed);
        // The first three have left; the seven that share an entry leave with the last of them.
        assert_eq!(look(quota, &log, later(1_000_000_008), 1).used_before, 7);
        assert_eq!(look(quota, &log, later(1_000_000_009), 1).used_before, 0);
    }

    #[test]
    fn a_log_grows_as_announced_and_shrinks_again() {
        let quota = Quota::per(50_000, SECOND).unwrap();
        let mut log = Log::default();
        for n in 0..20_000 {
            let announced = log.bytes() + log.growth();
            assert!(take(quota, &mut log, later(n), 1).allowed);
            assert_eq!(log.bytes(), announced);
        }
        assert_eq!(log.bytes(), MAX_ENTRIES * 16);
        settle(quota, &mut log, later(2_000_000_000));
        assert_eq!(log.bytes(), 4 * 16);
    }

    #[test]
    fn refunds_take_the_oldest() {
        let quota = Quota::per(4, SECOND).unwrap();
        let mut log = Log::default();
        for n in [0, 1, 2] {
            assert!(take(quota, &mut log, later(n), 1).allowed);
        }
        assert_eq!(give_back(quota, &mut log, later(3), 2), 2);
        assert_eq!(look(quota, &log, later(1_000_000_001), 1).used_before, 1);
        assert_eq!(give_back(quota, &mut log, later(4), 2), 1);
        assert_eq!(log.until(quota), Timestamp::ZERO);
    }

    #[test]
    fn totals_wrap_without_a_trace() {
        let quota = Quota::per(u64::MAX, SECOND).unwrap();
        let mut log = Log::default();
        for n in 0..9 {
            let now = START + Span::from_millis(500 * n);
            let outcome = take(quota, &mut log, now, u64::MAX / 2);
            assert!(outcome.allowed);
            assert_eq!(outcome.used_before, if n == 0 { 0 } else { u64::MAX / 2 });
        }
    }
}
