//! One shard: the counters behind one lock.

use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::CounterKey,
        limit::{Algorithm, State},
        time::{Span, Timestamp},
    },
    store::{
        Charge,
        memory::{
            WhenFull,
            cell::{Cell, LogCell},
            table::{Saved, Table},
        },
    },
};

/// How many counters may be in a shard, and what happens beyond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) keys: usize,
    pub(super) when_full: WhenFull,
}

/// Counters of constant size stand in one table, logs in another: a log is large and rare, and
/// must not make the others larger.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) counters: Table<State>,
    pub(super) logs: Table<LogCell>,
    evicted: u64,
    roomless: u64,
}

fn is_log(charge: &Charge<'_>) -> bool {
    charge.limit.algorithm == Algorithm::SlidingLog
}

impl Shard {
    /// What taking `cost` would say; takes nothing.
    pub(super) fn look(&mut self, charge: &Charge<'_>, now: Timestamp, cost: u64) -> Outcome {
        if is_log(charge) {
            self.logs.look(charge, now, cost)
        } else {
            self.counters.look(charge, now, cost)
        }
    }

    /// An outcome that was looked up but not taken: what is left is what is left without it.
    pub(super) fn as_if_untouched(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        looked: Outcome,
    ) -> Outcome {
        let untouched = self.look(charge, now, 0);
        Outcome {
            used_before: untouched.used_before,
            remaining: untouched.remaining,
            reset: untouched.reset,
            ..looked
        }
    }

    /// The outcome with [`Outcome::more`]. A limit that is all there has no more to tell.
    pub(super) fn with_more(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        outcome: Outcome,
    ) -> Outcome {
        let more = match outcome.remaining.checked_add(1) {
            Some(cost) => self.look(charge, now, cost).retry,
            None => Retry::Never,
        };
        let more = match more {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        };
        Outcome { more, ..outcome }
    }

    /// Takes the charge if it passes; with `count_denied` counts it even if it does not.
    pub(super) fn take(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
        room: Room,
    ) -> Outcome {
        if is_log(charge) {
            self.take_as::<LogCell>(charge, now, count_denied, room)
        } else {
            self.take_as::<State>(charge, now, count_denied, room)
        }
    }

    fn take_as<C: Cell>(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
        room: Room,
    ) -> Outcome {
        let new = match C::table(self).take(charge, now, count_denied) {
            Ok(outcome) => return outcome,
            Err(new) => new,
        };
        if self.has_room(1, now, room) || self.evict(now, room.when_full) {
            return C::table(self).insert(new);
        }
        self.count_roomless();
        match room.when_full {
            WhenFull::Deny => without_counter(new.outcome),
            WhenFull::Allow | WhenFull::EvictSoonest => new.outcome,
        }
    }

    /// Gives the charge back, as far as it was taken; always passes.
    pub(super) fn give_back(&mut self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        if is_log(charge) {
            self.logs.give_back(charge, now)
        } else {
            self.counters.give_back(charge, now)
        }
    }

    /// Whether the charge's counter is here.
    pub(super) fn holds(&self, charge: &Charge<'_>) -> bool {
        if is_log(charge) {
            self.logs.holds(charge.key)
        } else {
            self.counters.holds(charge.key)
        }
    }

    /// Whether so many more counters fit without pushing a live one out.
    pub(super) fn has_room(&mut self, more: usize, now: Timestamp, room: Room) -> bool {
        if self.len() + more > room.keys && room.when_full != WhenFull::EvictSoonest {
            self.make_room::<State>(more, now, room);
            self.make_room::<LogCell>(more, now, room);
        }
        self.len() + more <= room.keys
    }

    /// Lets one counter give way, if that is the configured answer.
    fn evict(&mut self, now: Timestamp, when_full: WhenFull) -> bool {
        if when_full != WhenFull::EvictSoonest {
            return false;
        }
        let (counter, log) = (self.counters.least(now), self.logs.least(now));
        let weight = match (counter, log) {
            (Some(counter), log) if log.is_none_or(|log| counter.0 <= log.0) => {
                self.counters.forget(counter.1);
                counter.0
            }
            (_, Some(log)) => {
                self.logs.forget(log.1);
                log.0
            }
            (_, None) => return false,
        };
        let was_live = !weight.1.is_zero();
        self.evicted += u64::from(was_live);
        true
    }

    /// Forgets a counter; true when there was one.
    pub(super) fn reset(&mut self, key: CounterKey) -> bool {
        let counter = self.counters.reset(key);
        self.logs.reset(key) || counter
    }

    /// Frees what is as good as fresh until there is room for so many more.
    fn make_room<C: Cell>(&mut self, more: usize, now: Timestamp, room: Room) {
        let mut walk = C::table(self).begin_sweep(now);
        while let Some(from) = walk {
            if self.len() + more <= room.keys {
                return C::table(self).leave_sweep(from);
            }
            walk = C::table(self).sweep(from, now);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len() + self.logs.len()
    }

    /// A charge is answered without a counter because there is no room for one.
    pub(super) fn count_roomless(&mut self) {
        self.roomless += 1;
    }

    /// Live counters that gave way to others.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Charges answered without a counter because there was no room for one.
    pub(super) fn roomless(&self) -> u64 {
        self.roomless
    }

    /// An estimate of what its tables take, in bytes; logs without their entries.
    pub(super) fn bytes(&self) -> usize {
        self.counters.bytes() + self.logs.bytes()
    }

    /// Puts a counter of a life before in its place; false when there is no room for it.
    pub(super) fn restore<C: Cell>(&mut self, saved: Saved<C>, now: Timestamp, room: Room) -> bool {
        let fits = self.has_room(1, now, room) || self.evict(now, room.when_full);
        if fits {
            C::table(self).restore(saved);
        }
        fits
    }
}

/// The refusal when no counter can be kept. When there will be room nobody knows.
pub(super) fn without_counter(outcome: Outcome) -> Outcome {
    Outcome {
        allowed: false,
        remaining: 0,
        retry: Retry::After(Span::from_secs(1)),
        ..outcome
    }
}
