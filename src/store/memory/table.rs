//! A table of counters of one kind, by key.

use std::borrow::Cow;

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
        memory::{WhenFull, cell::Cell},
    },
};

/// How many counters may be here, and what happens beyond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) keys: usize,
    pub(super) when_full: WhenFull,
}

/// Counters of one kind.
#[derive(Debug)]
pub(super) struct Table<C> {
    slots: HashTable<Slot<C>>,
    pressed_out: u64,
}

/// One counter: 40 bytes with the state of all algorithms but the log. Of the 128 bits of its key
/// 96 are kept; the lowest 32 choose the shard, so that keys of one shard share those that matter.
#[derive(Clone, Debug)]
struct Slot<C> {
    key_high: u64,
    key_middle: u32,
    /// Version of the limit that the cell was written under.
    version: u32,
    cell: C,
}

impl<C: Cell> Slot<C> {
    fn is(&self, (high, middle): (u64, u32)) -> bool {
        self.key_high == high && self.key_middle == middle
    }

    /// The cell as today's limit reads it.
    fn under(&mut self, limit: &Limit, now: Timestamp) -> &mut C {
        if let Some(carried) = self.cell.carried(self.version, limit, now) {
            self.cell = carried;
            self.version = limit.version;
        }
        &mut self.cell
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the parts of a 128-bit key"
)]
fn split(key: CounterKey) -> (u64, u32) {
    ((key.bits() >> 64) as u64, (key.bits() >> 32) as u32)
}

impl<C> Default for Table<C> {
    fn default() -> Self {
        Self {
            slots: HashTable::new(),
            pressed_out: 0,
        }
    }
}

impl<C: Cell> Table<C> {
    /// What taking `cost` would say; changes nothing.
    pub(super) fn look(&self, charge: &Charge<'_>, now: Timestamp, cost: u64) -> Outcome {
        let parts = split(charge.key);
        let cell = match self.slots.find(parts.0, |slot| slot.is(parts)) {
            Some(slot) => match slot.cell.carried(slot.version, charge.limit, now) {
                Some(carried) => Cow::Owned(carried),
                None => Cow::Borrowed(&slot.cell),
            },
            None => Cow::Owned(C::default()),
        };
        cell.look(charge.limit, now, cost)
    }

    /// Takes the charge if it passes; with `count_denied` counts it even if it does not.
    pub(super) fn take(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
        room: Room,
    ) -> Outcome {
        let Charge { limit, cost, .. } = *charge;
        let parts = split(charge.key);
        if let Some(slot) = self.slots.find_mut(parts.0, |slot| slot.is(parts)) {
            if cost == 0 {
                return self.look(charge, now, 0);
            }
            return slot.under(limit, now).take(limit, now, cost, count_denied);
        }
        let mut cell = C::default();
        let outcome = cell.take(limit, now, cost, count_denied);
        if cell.until() <= now {
            // Nothing was counted.
            return outcome;
        }
        if self.slots.len() >= room.keys && !self.make_room(now, room.when_full) {
            self.pressed_out += 1;
            return without_counter(outcome, room.when_full);
        }
        let (key_high, key_middle) = parts;
        let slot = Slot {
            key_high,
            key_middle,
            version: limit.version,
            cell,
        };
        self.slots
            .insert_unique(key_high, slot, |slot| slot.key_high);
        outcome
    }

    /// Gives the charge back, as far as it was taken; always passes.
    pub(super) fn give_back(&mut self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let parts = split(charge.key);
        if let Some(slot) = self.slots.find_mut(parts.0, |slot| slot.is(parts)) {
            slot.under(charge.limit, now)
                .give_back(charge.limit, now, charge.cost);
        }
        Outcome {
            allowed: true,
            retry: Retry::After(Span::ZERO),
            ..self.look(charge, now, 0)
        }
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

    /// Frees what is as good as fresh.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.slots.retain(|slot| slot.cell.until() > now);
        if self.slots.len() * 4 < self.slots.capacity() {
            self.slots
                .shrink_to(self.slots.len() * 2, |slot| slot.key_high);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Counters that gave way, and requests answered without one.
    pub(super) fn pressed_out(&self) -> u64 {
        self.pressed_out
    }

    /// Makes room for one more counter, if the configured answer is to make it.
    fn make_room(&mut self, now: Timestamp, when_full: WhenFull) -> bool {
        let before = self.slots.len();
        self.slots.retain(|slot| slot.cell.until() > now);
        if self.slots.len() < before {
            return true;
        }
        if when_full != WhenFull::EvictSoonest {
            return false;
        }
        // A caller that was counted often must not be pushed out by a flood of callers seen once.
        let soonest = self
            .slots
            .iter()
            .min_by_key(|slot| (slot.cell.until(), slot.cell.weight()));
        let Some(parts) = soonest.map(|slot| (slot.key_high, slot.key_middle)) else {
            return false;
        };
        if let Ok(entry) = self.slots.find_entry(parts.0, |slot| slot.is(parts)) {
            entry.remove();
            self.pressed_out += 1;
        }
        true
    }
}

/// The configured answer when no counter can be kept.
fn without_counter(outcome: Outcome, when_full: WhenFull) -> Outcome {
    match when_full {
        WhenFull::Deny => Outcome {
            allowed: false,
            remaining: 0,
            retry: Retry::After(Span::from_secs(1)),
            ..outcome
        },
        WhenFull::Allow | WhenFull::EvictSoonest => outcome,
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
