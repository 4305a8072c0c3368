//! A table of counters of one kind, by key.
//!
//! Counters stand side by side in a dense array, and an index beside it says where. So a table
//! grows by a small piece that is added and by an index that is rebuilt without looking at a single
//! counter; a counter costs its slot and some ten bytes at any size; and who walks through the
//! table (the sweep, a snapshot, the search for what may give way) meets counters only.

use std::io::Read;

use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
    rules::limit::Limit,
    store::{
        charges::Charge,
        memory::{
            cell::Cell,
            index::{self, Index, Tag},
            slots::Slots,
            weight::{self, Weight},
        },
        state::wire::{Input, Put, Unreadable},
    },
};

/// Counters that are looked at when one has to give way: the least important of so many goes.
/// Looking at all would hold the lock for microseconds.
const SAMPLE: usize = 64;

/// Counters that are looked at by a sweep while a lock is held.
const SWEEP: usize = 1_024;

/// So many bytes are copied while a lock is held: some 6 000 counters, or 16 000 entries of logs.
const PART: usize = 256 << 10;

/// Most counters of a table: with so many, its index is rebuilt in well under a millisecond.
pub(super) const MOST: usize = index::MOST;

/// How far someone has come who walks through a table from its end to its beginning: what is left
/// are the positions below. Whoever is taken out meanwhile leaves its place to the last, which has
/// been visited or comes to stand where it still will be. So nobody is missed who was there from
/// the start; some are met twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    below: usize,
    /// Of a sweep: what [`Table::soonest`] was before it.
    soonest: Timestamp,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            below: usize::MAX,
            soonest: Timestamp::ZERO,
        }
    }
}

/// Counters of one kind, at most [`MOST`].
#[derive(Debug)]
pub(super) struct Table<C> {
    index: Index,
    slots: Slots<Slot<C>>,
    /// Bytes that the cells have elsewhere.
    elsewhere: usize,
    /// Where the next sample begins.
    hand: usize,
    /// No counter is as good as fresh before this, unless a sweep is under way.
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
    /// How much it would matter to forget it, at the latest write; see [`weight`].
    weight: u8,
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

impl<C: Cell> New<C> {
    /// Takes the charge from a fresh counter.
    ///
    /// # Errors
    /// What is answered when nothing is counted: then there is no counter to keep.
    pub(super) fn take(
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
    ) -> Result<Self, Outcome> {
        let Charge { limit, cost, .. } = *charge;
        let mut cell = C::default();
        cell.grow();
        let outcome = cell.take(limit, now, cost, count_denied);
        if cell.until() <= now {
            return Err(outcome);
        }
        let (key_high, key_middle) = split(charge.key);
        let mut slot = Slot {
            key_high,
            key_middle,
            version: low_bits(limit.version),
            weight: 0,
            is_lasting: limit.is_lasting(),
            cell,
        };
        slot.weigh(limit, &outcome);
        Ok(Self { slot, outcome })
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        Table::<C>::SLOT + self.slot.cell.elsewhere()
    }
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
            weight: input.u8()?,
            is_lasting: true,
            cell: C::read(input)?,
        }))
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        Table::<C>::SLOT + self.0.cell.elsewhere()
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

    fn weigh(&mut self, limit: &Limit, outcome: &Outcome) {
        let used = limit.capacity().saturating_sub(outcome.remaining);
        self.weight = weight::of(used, limit.quota.units(), limit.quota.period());
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
            index: Index::default(),
            slots: Slots::default(),
            elsewhere: 0,
            hand: 0,
            soonest: Timestamp::MAX,
        }
    }
}

impl<C: Cell> Table<C> {
    /// Bytes of a counter: its slot, up to thirteen in the index, a part of a piece's header.
    pub(super) const SLOT: usize = size_of::<Slot<C>>() + 14;

    #[inline]
    fn position(&self, parts: (u64, u32)) -> Option<usize> {
        let is_right = |position| self.slots.get(position).is_some_and(|slot| slot.is(parts));
        self.index.find(Tag::new(parts.0), is_right)
    }

    /// Does something with the counter at a position and keeps the count of its memory.
    #[inline]
    fn change<T>(
        &mut self,
        position: Option<usize>,
        change: impl FnOnce(&mut Slot<C>) -> T,
    ) -> Option<T> {
        let slot = self.slots.get_mut(position?)?;
        let before = slot.cell.elsewhere();
        let done = change(slot);
        let (after, until) = (slot.cell.elsewhere(), slot.cell.until());
        self.note_change((before, after), until);
        Some(done)
    }

    #[inline]
    fn note_change(&mut self, (before, after): (usize, usize), until: Timestamp) {
        self.elsewhere = self.elsewhere.saturating_sub(before) + after;
        self.soonest = self.soonest.min(until);
    }

    /// What taking `cost` from the counter of the charge, which stands at this position if it is
    /// here, would say. Takes nothing; the cell is settled, so that a clock that stepped back and a
    /// changed quota count from the first look on.
    pub(super) fn look(
        &mut self,
        position: Option<usize>,
        charge: &Charge<'_>,
        now: Timestamp,
        cost: u64,
    ) -> Outcome {
        let looked = self.change(position, |slot| {
            slot.at(charge.limit, now).look(charge.limit, now, cost)
        });
        match looked {
            Some(outcome) => outcome,
            None => C::default().look(charge.limit, now, cost),
        }
    }

    /// Bytes that taking the charge adds to the counter at a position.
    pub(super) fn growth(
        &mut self,
        position: Option<usize>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> usize {
        let growth = self.change(position, |slot| slot.at(charge.limit, now).growth());
        growth.unwrap_or(0)
    }

    /// Lets a counter that is here grow.
    pub(super) fn grow(&mut self, charge: &Charge<'_>) {
        let position = self.position(split(charge.key));
        let _ = self.change(position, |slot| slot.cell.grow());
    }

    /// Where the counter stands; none when it is not here.
    #[inline]
    pub(super) fn find(&self, key: CounterKey) -> Option<usize> {
        self.position(split(key))
    }

    /// [`Table::find`] of a counter that stood at this position before; it may have been moved.
    #[inline]
    pub(super) fn find_again(&self, key: CounterKey, before: Option<usize>) -> Option<usize> {
        let parts = split(key);
        let stays = |position: &usize| self.slots.get(*position).is_some_and(|slot| slot.is(parts));
        before.filter(stays).or_else(|| self.position(parts))
    }

    /// Takes a charge of something from its counter, which stands at this position, if it passes;
    /// with `count_denied` counts it even if it does not. For a counter that is not here see
    /// [`New::take`].
    #[inline]
    pub(super) fn take(
        &mut self,
        position: usize,
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
    ) -> Outcome {
        let Charge { limit, cost, .. } = *charge;
        let Some(slot) = self.slots.get_mut(position) else {
            return C::default().look(limit, now, cost);
        };
        let before = slot.cell.elsewhere();
        // A take settles by itself.
        if slot.version != low_bits(limit.version) {
            slot.at(limit, now);
        }
        let outcome = slot.cell.take(limit, now, cost, count_denied);
        slot.weigh(limit, &outcome);
        let (after, until) = (slot.cell.elsewhere(), slot.cell.until());
        self.note_change((before, after), until);
        outcome
    }

    /// Puts a new counter in its place.
    pub(super) fn insert(&mut self, new: New<C>) -> Outcome {
        self.push(new.slot);
        new.outcome
    }

    fn push(&mut self, slot: Slot<C>) {
        self.soonest = self.soonest.min(slot.cell.until());
        self.elsewhere += slot.cell.elsewhere();
        self.index.insert(Tag::new(slot.key_high), self.slots.len());
        self.slots.push(slot);
    }

    /// Takes out the counter at a position; the last one takes its place.
    fn remove(&mut self, position: usize) {
        let last = self.slots.len().saturating_sub(1);
        let tag = |slot: &Slot<C>| Tag::new(slot.key_high);
        if let (Some(gone), Some(moved)) = (
            self.slots.get(position).map(tag),
            self.slots.get(last).map(tag),
        ) {
            self.index.remove(gone, position);
            self.index.renumber(moved, last, position);
            if let Some(gone) = self.slots.swap_remove(position) {
                self.elsewhere = self.elsewhere.saturating_sub(gone.cell.elsewhere());
            }
        }
    }

    /// Gives the charge back, as far as it was taken; always passes.
    pub(super) fn give_back(&mut self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let position = self.find(charge.key);
        let _ = self.change(position, |slot| {
            let cell = slot.at(charge.limit, now);
            cell.give_back(charge.limit, now, charge.cost);
            let outcome = cell.look(charge.limit, now, 0);
            slot.weigh(charge.limit, &outcome);
        });
        Outcome {
            allowed: true,
            retry: Retry::After(Span::ZERO),
            ..self.look(position, charge, now, 0)
        }
    }

    /// Forgets the counter; true when there was one.
    pub(super) fn reset(&mut self, key: CounterKey) -> bool {
        let position = self.position(split(key));
        if let Some(position) = position {
            self.remove(position);
        }
        position.is_some()
    }

    /// Begins to free what is as good as fresh; none when nothing can be.
    pub(super) fn begin_sweep(&mut self, now: Timestamp) -> Option<Walk> {
        if now < self.soonest {
            return None;
        }
        let soonest = self.soonest;
        // Grows smaller again with everyone who stays or is written to meanwhile.
        self.soonest = Timestamp::MAX;
        Some(Walk {
            soonest,
            ..Walk::default()
        })
    }

    /// Frees what is as good as fresh among the next [`SWEEP`] counters. Says where to go on; none:
    /// that were all.
    pub(super) fn sweep(&mut self, from: Walk, now: Timestamp) -> Option<Walk> {
        let last = from.below.min(self.slots.len());
        let first = last.saturating_sub(SWEEP);
        for position in (first..last).rev() {
            let until = self.slots.get(position).map(|slot| slot.cell.until());
            match until {
                Some(until) if until > now => self.soonest = self.soonest.min(until),
                _ => self.remove(position),
            }
        }
        if first > 0 {
            return Some(Walk {
                below: first,
                ..from
            });
        }
        self.index.shrink();
        self.slots.shrink();
        None
    }

    /// Leaves the rest of a sweep to the next one.
    pub(super) fn leave_sweep(&mut self, walk: Walk) {
        self.soonest = self.soonest.min(walk.soonest);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// What it takes, in bytes, with what its cells have elsewhere.
    pub(super) fn bytes(&self) -> usize {
        self.index.bytes() + self.slots.bytes() + self.elsewhere
    }

    /// What its counters take, in bytes, when its arrays are as full as they are when they grow.
    /// A counter that is taken out counts no more at once, although a piece of the array is given
    /// back only when it is empty.
    pub(super) fn needed(&self) -> usize {
        self.slots.len() * Self::SLOT + self.elsewhere
    }

    /// Appends the lasting counters that are left of a walk, each behind `tag`, until there are
    /// [`PART`] bytes; says where to go on. None: that were all. Of a counter that is copied twice
    /// the later one wins.
    pub(super) fn save(
        &self,
        tag: u8,
        from: Walk,
        now: Timestamp,
        out: &mut Vec<u8>,
    ) -> Option<Walk> {
        for position in (0..from.below.min(self.slots.len())).rev() {
            if out.len() >= PART {
                return Some(Walk {
                    below: position + 1,
                    ..from
                });
            }
            let Some(slot) = self.slots.get(position) else {
                continue;
            };
            if slot.is_lasting && slot.cell.until() > now {
                out.put_u8(tag);
                out.put_u64(slot.key_high);
                out.put_u32(slot.key_middle);
                out.put_u16(slot.version);
                out.put_u8(slot.weight);
                slot.cell.save(out);
            }
        }
        None
    }

    /// Puts a counter of a life before in its place; of two the later one wins.
    pub(super) fn restore(&mut self, saved: Saved<C>) {
        let slot = saved.0;
        let parts = (slot.key_high, slot.key_middle);
        let position = self.position(parts);
        if position.is_some() {
            let _ = self.change(position, |known| *known = slot);
        } else {
            self.push(slot);
        }
    }

    /// The position of the least important counter of a sample, and how important it is; never that
    /// of `but`. None only when there is no other in the sample.
    pub(super) fn least(&mut self, but: CounterKey, now: Timestamp) -> Option<(Weight, usize)> {
        let len = self.slots.len();
        let weigh = |position| {
            let slot = self.slots.get(position)?;
            if slot.is(split(but)) {
                return None;
            }
            Some((
                weight::now(slot.weight, now.until(slot.cell.until())),
                position,
            ))
        };
        let first = self.hand.checked_rem(len)?;
        self.hand = first + SAMPLE.min(len);
        let sample = (first..self.hand).map(|position| position % len);
        sample.filter_map(weigh).min()
    }

    /// Forgets the counter at a position that [`Table::least`] named.
    pub(super) fn forget(&mut self, position: usize) {
        self.remove(position);
    }
}

#[cfg(test)]
mod tests;
