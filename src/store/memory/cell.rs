//! What a counter is made of: the constant-size state of most algorithms, or a log.

use std::io::Read;

use crate::{
    algorithm::{
        self, Outcome,
        sliding_log::{self, Log, MAX_ENTRIES},
    },
    model::{
        limit::{Algorithm, Quota, State},
        time::Timestamp,
    },
    rules::limit::Limit,
    store::{
        memory::{shard::Shard, table::Table},
        state::wire::{Input, Put, Unreadable},
    },
};

/// A counter as its table sees it. The default is the fresh one.
pub(super) trait Cell: Clone + Default {
    /// Whether it has memory elsewhere.
    const GROWS: bool;

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

    /// Bytes that it has elsewhere.
    fn elsewhere(&self) -> usize {
        0
    }

    /// Bytes that the next take adds to these.
    fn growth(&self) -> usize {
        0
    }

    /// Takes up [`Cell::growth`] more; a cell that was not let grow goes on in its place, and never
    /// admits more for it.
    fn grow(&mut self) {}

    /// See [`algorithm::take`].
    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, count_denied: bool) -> Outcome;

    /// See [`algorithm::give_back`].
    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64);

    /// Appends it for the state file.
    fn save(&self, out: &mut Vec<u8>);

    /// Reads what [`Cell::save`] wrote.
    fn read<R: Read>(input: &mut Input<R>) -> Result<Self, Unreadable>;
}

impl Cell for State {
    const GROWS: bool = false;

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

    fn save(&self, out: &mut Vec<u8>) {
        out.put_time(self.until);
        out.put_u64(self.a);
        out.put_u64(self.b);
    }

    fn read<R: Read>(input: &mut Input<R>) -> Result<Self, Unreadable> {
        Ok(Self {
            until: input.time()?,
            a: input.u64()?,
            b: input.u64()?,
        })
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

/// What a log has elsewhere from the first entry on, in bytes.
pub(super) const FIRST_ENTRIES: usize = 4 * 16;

impl Cell for LogCell {
    const GROWS: bool = true;

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

    fn elsewhere(&self) -> usize {
        self.log.bytes()
    }

    fn growth(&self) -> usize {
        self.log.growth()
    }

    fn grow(&mut self) {
        self.log.grow();
    }

    fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome {
        sliding_log::look(limit.quota, &self.log, now, cost)
    }

    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, _: bool) -> Outcome {
        if cost > 0 {
            // Also when all of it has ended.
            sliding_log::settle(limit.quota, &mut self.log, now);
        }
        let outcome = sliding_log::take_in_place(limit.quota, &mut self.log, now, cost);
        self.note_end(limit.quota);
        outcome
    }

    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        sliding_log::give_back(limit.quota, &mut self.log, now, cost);
        self.note_end(limit.quota);
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.put_time(self.until);
        let entries = self.log.entries();
        out.put_u32(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        for (at, cost) in entries {
            out.put_time(at);
            out.put_u64(cost);
        }
    }

    fn read<R: Read>(input: &mut Input<R>) -> Result<Self, Unreadable> {
        let until = input.time()?;
        let length = input.u32()? as usize;
        if length > MAX_ENTRIES {
            return Err(Unreadable::Meaningless("the length of a log"));
        }
        let mut log = Log::default();
        for _ in 0..length {
            log.note(input.time()?, input.u64()?);
        }
        Ok(Self { until, log })
    }
}
