//! What a counter is made of: the constant-size state of most algorithms, or a log.

use crate::{
    algorithm::{
        self, Outcome,
        sliding_log::{self, Log},
    },
    model::{
        limit::{Algorithm, Quota, State},
        time::Timestamp,
    },
    rules::limit::Limit,
    store::memory::{shard::Shard, table::Table},
};

/// A counter as its table sees it. The default is the fresh one.
pub(super) trait Cell: Clone + Default {
    /// The table of a shard that holds this kind.
    fn table(shard: &mut Shard) -> &mut Table<Self>;

    /// From here on it is as good as fresh.
    fn until(&self) -> Timestamp;

    /// Brings the cell to the time line of `now` and, if it was written under an `old` quota, to
    /// today's. Changes no answer at `now`; later answers count from here. What has ended stays as
    /// it is: it needs no move, and a clock that steps back must not find it gone.
    fn settle(&mut self, old: Option<(&Algorithm, Quota)>, limit: &Limit, now: Timestamp);

    /// See [`algorithm::look`].
    fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome;

    /// See [`algorithm::take`].
    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, count_denied: bool) -> Outcome;

    /// See [`algorithm::give_back`].
    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64);
}

impl Cell for State {
    fn table(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.counters
    }

    fn until(&self) -> Timestamp {
        self.until
    }

    fn settle(&mut self, old: Option<(&Algorithm, Quota)>, limit: &Limit, now: Timestamp) {
        if let Some(old) = old {
            *self = algorithm::carry(old, (&limit.algorithm, limit.quota), self, now);
        }
        if self.until > now {
            algorithm::settle(&limit.algorithm, limit.quota, self, now);
        }
    }

    fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome {
        algorithm::look(&limit.algorithm, limit.quota, self, now, cost)
    }

    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, count_denied: bool) -> Outcome {
        algorithm::take(&limit.algorithm, limit.quota, self, now, cost, count_denied)
    }

    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        algorithm::give_back(&limit.algorithm, limit.quota, self, now, cost);
    }
}

/// A log with the instant at which it is as good as empty.
#[derive(Clone, Debug, Default)]
pub(super) struct LogCell {
    until: Timestamp,
    log: Log,
}

impl LogCell {
    fn note_end(&mut self, quota: Quota) {
        self.until = self.log.until(quota);
    }
}

impl Cell for LogCell {
    fn table(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.logs
    }

    fn until(&self) -> Timestamp {
        self.until
    }

    fn settle(&mut self, old: Option<(&Algorithm, Quota)>, limit: &Limit, now: Timestamp) {
        if let Some((_, quota)) = old {
            // What had left under the old period does not come back under a longer one: whether
            // the log was swept in between must make no difference.
            sliding_log::settle(quota, &mut self.log, now);
        }
        self.note_end(limit.quota);
        if self.until > now {
            sliding_log::settle(limit.quota, &mut self.log, now);
            self.note_end(limit.quota);
        }
    }

    fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome {
        sliding_log::look(limit.quota, &self.log, now, cost)
    }

    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, _: bool) -> Outcome {
        let outcome = sliding_log::take(limit.quota, &mut self.log, now, cost);
        self.note_end(limit.quota);
        outcome
    }

    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        sliding_log::give_back(limit.quota, &mut self.log, now, cost);
        self.note_end(limit.quota);
    }
}
