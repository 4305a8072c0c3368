//! A table of counters of one kind, by key.

use hashbrown::HashTable;

use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
    rules::limit::Limit,
    store::{
        Charge,
        memory::{
            cell::Cell,
            weight::{self, Weight},
        },
    },
};

/// Buckets that are looked at when one counter has to give way: of so many, about half of them
/// taken, the least important goes. Looking at all would hold the lock for microseconds.
const SAMPLE: usize = 64;

/// Counters of one kind.
#[derive(Debug)]
pub(super) struct Table<C> {
    slots: HashTable<Slot<C>>,
    /// Where the next sample begins.
    hand: usize,
    /// No counter is as good as fresh before this.
    soonest: Timestamp,
}

/// One counter: 40 bytes with the state of all algorithms but the log. Of the 128 bits of its key
/// 96 are kept; the lowest 32 choose the shard, so that keys of one shard share those that matter.
#[derive(Clone, Debug)]
struct Slot<C> {
    key_high: u64,
    key_middle: u32,
    /// The lowest bits of the limit's version that the cell was written under.
    version: u16,
    /// How much of the limit was used at the latest write; see [`weight`].
    share: u8,
    cell: C,
}

/// A counter that does not stand in its table yet.
#[derive(Debug)]
pub(super) struct New<C> {
    slot: Slot<C>,
    /// What it answers.
    pub(super) outcome: Outcome,
}

impl<C: Cell> Slot<C> {
    fn is(&self, (high, middle): (u64, u32)) -> bool {
        self.key_high == high && self.key_middle == middle
    }

    /// The cell as it stands at `now` under today's limit.
    fn at(&mut self, limit: &Limit, now: Timestamp) -> &mut C {
        let version = low_bits(limit.version);
        let old = if self.version == version {
            None
        } else {
            let mut history = limit.history.iter();
            history.find(|(old, ..)| low_bits(*old) == self.version)
        };
        let old = old.map(|(_, algorithm, quota)| (algorithm, *quota));
        self.cell.settle(old, limit, now);
        self.version = version;
        &mut self.cell
    }

    fn note_share(&mut self, limit: &Limit, outcome: &Outcome) {
        let capacity = limit.capacity();
        self.share = weight::share(capacity.saturating_sub(outcome.remaining), capacity);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
const fn low_bits(version: u32) -> u16 {
    version as u16
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the parts of a 128-bit key"
)]
const fn split(key: CounterKey) -> (u64, u32) {
    ((key.bits() >> 64) as u64, (key.bits() >> 32) as u32)
}

impl<C> Default for Table<C> {
    fn default() -> Self {
        Self {
            slots: HashTable::new(),
            hand: 0,
            soonest: Timestamp::MAX,
        }
    }
}

impl<C: Cell> Table<C> {
    /// What taking `cost` would say. Takes nothing; the cell is settled, so that a clock that
    /// stepped back and a changed quota count from the first look on.
    pub(super) fn look(&mut self, charge: &Charge<'_>, now: Timestamp, cost: u64) -> Outcome {
        let parts = split(charge.key);
        match self.slots.find_mut(parts.0, |slot| slot.is(parts)) {
            Some(slot) => {
                let cell = slot.at(charge.limit, now);
                let (outcome, until) = (cell.look(charge.limit, now, cost), cell.until());
                self.soonest = self.soonest.min(until);
                outcome
            }
            None => C::default().look(charge.limit, now, cost),
        }
    }

    /// Takes the charge if it passes; with `count_denied` counts it even if it does not. A counter
    /// that is not here yet is handed back, for [`Table::insert`].
    pub(super) fn take(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
    ) -> Result<Outcome, New<C>> {
        let Charge { limit, cost, .. } = *charge;
        let parts = split(charge.key);
        if cost == 0 {
            return Ok(self.look(charge, now, 0));
        }
        if let Some(slot) = self.slots.find_mut(parts.0, |slot| slot.is(parts)) {
            let cell = slot.at(limit, now);
            let (outcome, until) = (cell.take(limit, now, cost, count_denied), cell.until());
            slot.note_share(limit, &outcome);
            self.soonest = self.soonest.min(until);
            return Ok(outcome);
        }
        let mut cell = C::default();
        let outcome = cell.take(limit, now, cost, count_denied);
        if cell.until() <= now {
            // Nothing was counted.
            return Ok(outcome);
        }
        let (key_high, key_middle) = parts;
        let mut slot = Slot {
            key_high,
            key_middle,
            version: low_bits(limit.version),
            share: 0,
            cell,
        };
        slot.note_share(limit, &outcome);
        Err(New { slot, outcome })
    }

    /// Puts a new counter in its place.
    pub(super) fn insert(&mut self, new: New<C>) -> Outcome {
        self.soonest = self.soonest.min(new.slot.cell.until());
        self.slots
            .insert_unique(new.slot.key_high, new.slot, |slot| slot.key_high);
        new.outcome
    }

    /// Gives the charge back, as far as it was taken; always passes.
    pub(super) fn give_back(&mut self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let parts = split(charge.key);
        if let Some(slot) = self.slots.find_mut(parts.0, |slot| slot.is(parts)) {
            let cell = slot.at(charge.limit, now);
            cell.give_back(charge.limit, now, charge.cost);
            let outcome = cell.look(charge.limit, now, 0);
            slot.note_share(charge.limit, &outcome);
        }
        Outcome {
            allowed: true,
            retry: Retry::After(Span::ZERO),
            ..self.look(charge, now, 0)
        }
    }

    /// Whether the counter is here.
    pub(super) fn holds(&self, key: CounterKey) -> bool {
        let parts = split(key);
        self.slots.find(parts.0, |slot| slot.is(parts)).is_some()
    }

    /// Forgets the counter; true when there was one.
    pub(super) fn reset(&mut self, key: CounterKey) -> bool {
        let parts = split(key);
        match self.slots.find_entry(parts.0, |slot| slot.is(parts)) {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        }
    }

    /// Frees what is as good as fresh; looks at nothing when nothing can be.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        if now < self.soonest {
            return;
        }
        let mut soonest = Timestamp::MAX;
        self.slots.retain(|slot| {
            let until = slot.cell.until();
            let live = until > now;
            if live {
                soonest = soonest.min(until);
            }
            live
        });
        self.soonest = soonest;
        if self.slots.len() * 4 < self.slots.capacity() {
            self.slots
                .shrink_to(self.slots.len() * 2, |slot| slot.key_high);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// What its slots take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.slots.allocation_size()
    }

    /// The bucket of the least important counter of a sample, and how important it is. None only
    /// when no counter is here.
    pub(super) fn least(&mut self, now: Timestamp) -> Option<(Weight, usize)> {
        let buckets = self.slots.num_buckets();
        let mut least = None;
        for seen in 1..=buckets {
            self.hand = self.hand.wrapping_add(1) % buckets;
            if let Some(slot) = self.slots.get_bucket(self.hand) {
                let left = now.until(slot.cell.until());
                let weighed = (weight::of(left, slot.share), self.hand);
                least = Some(least.map_or(weighed, |least| weighed.min(least)));
            }
            if seen >= SAMPLE && least.is_some() {
                break;
            }
        }
        least
    }

    /// Forgets the counter in a bucket that [`Table::least`] named.
    pub(super) fn forget(&mut self, bucket: usize) {
        if let Ok(entry) = self.slots.get_bucket_entry(bucket) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::limit::State;

    #[test]
    fn a_counter_takes_40_bytes() {
        assert_eq!(size_of::<Slot<State>>(), 40);
    }
}
