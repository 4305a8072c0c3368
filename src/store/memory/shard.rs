//! One shard: the counters behind one lock.

use crate::{
    algorithm::Outcome,
    model::{
        key::CounterKey,
        limit::{Algorithm, State},
        time::Timestamp,
    },
    store::{
        Charge,
        memory::{
            cell::LogCell,
            table::{Room, Table},
        },
    },
};

/// Counters of constant size stand in one table, logs in another: a log is large and rare, and
/// must not make the others larger.
#[derive(Debug, Default)]
pub(super) struct Shard {
    counters: Table<State>,
    logs: Table<LogCell>,
}

fn is_log(charge: &Charge<'_>) -> bool {
    charge.limit.algorithm == Algorithm::SlidingLog
}

impl Shard {
    /// What taking `cost` would say; changes nothing.
    pub(super) fn look(&self, charge: &Charge<'_>, now: Timestamp, cost: u64) -> Outcome {
        if is_log(charge) {
            self.logs.look(charge, now, cost)
        } else {
            self.counters.look(charge, now, cost)
        }
    }

    /// An outcome that was looked up but not taken: what is left is what is left without it.
    pub(super) fn as_if_untouched(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        looked: Outcome,
    ) -> Outcome {
        let untouched = self.look(charge, now, 0);
        Outcome {
            remaining: untouched.remaining,
            reset: untouched.reset,
            ..looked
        }
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
            self.logs.take(charge, now, count_denied, room)
        } else {
            self.counters.take(charge, now, count_denied, room)
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

    /// Forgets a counter; true when there was one.
    pub(super) fn reset(&mut self, key: CounterKey) -> bool {
        let counter = self.counters.reset(key);
        self.logs.reset(key) || counter
    }

    /// Frees what is as good as fresh; returns how many counters are left.
    pub(super) fn sweep(&mut self, now: Timestamp) -> usize {
        self.counters.sweep(now);
        self.logs.sweep(now);
        self.len()
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len() + self.logs.len()
    }

    pub(super) fn pressed_out(&self) -> u64 {
        self.counters.pressed_out() + self.logs.pressed_out()
    }
}
