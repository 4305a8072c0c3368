//! What a counter is made of: the constant-size state of most algorithms, or a log.

use crate::{
    algorithm::{
        self, Outcome,
        sliding_log::{self, Log},
    },
    model::{
        limit::{Quota, State},
        time::Timestamp,
    },
    rules::limit::Limit,
};

/// A counter as its table sees it. The default is the fresh one.
pub(super) trait Cell: Clone + Default {
    /// From here on it is as good as fresh.
    fn until(&self) -> Timestamp;

    /// How much it was used, to tell callers seen once from others; only for comparing.
    fn weight(&self) -> u64;

    /// The cell as today's limit reads it, if it was written under another `version` of it.
    fn carried(&self, version: u32, limit: &Limit, now: Timestamp) -> Option<Self>;

    /// See [`algorithm::look`].
    fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome;

    /// See [`algorithm::take`].
    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, count_denied: bool) -> Outcome;

    /// See [`algorithm::give_back`].
    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64);
}

impl Cell for State {
    fn until(&self) -> Timestamp {
        self.until
    }

    fn weight(&self) -> u64 {
        self.a
    }

    fn carried(&self, version: u32, limit: &Limit, now: Timestamp) -> Option<Self> {
        if version == limit.version {
            return None;
        }
        let (_, algorithm, quota) = limit.history.iter().find(|(old, ..)| *old == version)?;
        let new = (&limit.algorithm, limit.quota);
        Some(algorithm::carry((algorithm, *quota), new, self, now))
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
    fn settle(&mut self, quota: Quota) {
        self.until = self.log.until(quota);
    }
}

impl Cell for LogCell {
    fn until(&self) -> Timestamp {
        self.until
    }

    fn weight(&self) -> u64 {
        0
    }

    fn carried(&self, _: u32, _: &Limit, _: Timestamp) -> Option<Self> {
        // Nothing in a log depends on its limit.
        None
    }

    fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome {
        sliding_log::look(limit.quota, &self.log, now, cost)
    }

    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, _: bool) -> Outcome {
        let outcome = sliding_log::take(limit.quota, &mut self.log, now, cost);
        self.settle(limit.quota);
        outcome
    }

    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        sliding_log::give_back(limit.quota, &mut self.log, now, cost);
        self.settle(limit.quota);
    }
}
