//! A table of counters of one kind, by key.

use std::io::Read;

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
        state::wire::{Input, Put, Unreadable},
    },
};

/// Buckets that are looked at when one counter has to give way: of so many, about half of them
/// taken, the least important goes. Looking at all would hold the lock for microseconds.
const SAMPLE: usize = 64;

/// So many bytes are copied while a lock is held: some 6 000 counters, or 16 000 entries of logs.
const PART: usize = 256 << 10;

/// A bucket in a table of so many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    bucket: usize,
    of: usize,
}

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
/// the upper 96 are kept; the lowest of those choose the shard, so that a slot alone says where it
/// belongs.
#[derive(Clone, Debug)]
struct Slot<C> {
    key_high: u64,
    key_middle: u32,
    /// The lowest bits of the limit's version that the cell was written under.
    version: u16,
    /// How much of the limit was used at the latest write; see [`weight`].
    share: u8,
    /// See [`Limit::is_lasting`].
    is_lasting: bool,
    cell: C,
}

/// A counter that does not stand in its table yet.
#[derive(Debug)]
pub(super) struct New<C> {
    slot: Slot<C>,
    /// What it answers.
    pub(super) outcome: Outcome,
}

/// A counter of a life before.
#[derive(Debug)]
pub(super) struct Saved<C>(Slot<C>);

impl<C: Cell> Saved<C> {
    /// Reads what [`Table::save`] wrote behind the tag.
    pub(super) fn read<R: Read>(input: &mut Input<R>) -> Result<Self, Unreadable> {
        Ok(Self(Slot {
            key_high: input.u64()?,
            key_middle: input.u32()?,
            version: input.u16()?,
            share: input.u8()?,
            is_lasting: true,
            cell: C::read(input)?,
        }))
    }

    /// As good as fresh.
    pub(super) fn has_ended(&self, now: Timestamp) -> bool {
        self.0.cell.until() <= now
    }

    /// The bits of its key that choose the shard.
    pub(super) const fn place(&self) -> u32 {
        self.0.key_middle
    }
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
        if self.version != version {
            self.version = version;
            self.is_lasting = limit.is_lasting();
        }
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
            is_lasting: limit.is_lasting(),
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

    /// Appends the lasting counters from `from` on, each behind `tag`, until there are [`PART`]
    /// bytes; says where to go on. None: that were all.
    pub(super) fn save(
        &self,
        tag: u8,
        from: Place,
        now: Timestamp,
        out: &mut Vec<u8>,
    ) -> Option<Place> {
        let of = self.slots.num_buckets();
        // Counters that moved are copied again: of two the later one wins.
        let first = if from.of == of { from.bucket } else { 0 };
        for bucket in first..of {
            if out.len() >= PART {
                return Some(Place { bucket, of });
            }
            let Some(slot) = self.slots.get_bucket(bucket) else {
                continue;
            };
            if slot.is_lasting && slot.cell.until() > now {
                out.put_u8(tag);
                out.put_u64(slot.key_high);
                out.put_u32(slot.key_middle);
                out.put_u16(slot.version);
                out.put_u8(slot.share);
                slot.cell.save(out);
            }
        }
        None
    }

    /// Puts a counter of a life before in its place; of two the later one wins.
    pub(super) fn restore(&mut self, saved: Saved<C>) {
        let slot = saved.0;
        let parts = (slot.key_high, slot.key_middle);
        self.soonest = self.soonest.min(slot.cell.until());
        if let Some(known) = self.slots.find_mut(parts.0, |known| known.is(parts)) {
            *known = slot;
        } else {
            self.slots
                .insert_unique(slot.key_high, slot, |slot| slot.key_high);
        }
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
