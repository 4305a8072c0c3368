//! Who asked most, in constant memory: the space-saving sketch.
//!
//! A sketch has room for k keys. A key that is not there takes the place of the one with the fewest
//! hits and goes on from its count; what it took over is how far its count may lie above the truth.
//! With n hits in all: every key with more than n ÷ k of them is there, a count is never below the
//! truth, and it is above it by at most n ÷ k (Metwally, Agrawal, El Abbadi: Efficient Computation
//! of Frequent and Top-k Elements in Data Streams, ICDT 2005). Sketches of parts of a stream can be
//! put together and keep all three (Agarwal et al.: Mergeable Summaries, PODS 2012).

use hashbrown::{HashMap, HashTable};

use crate::model::key::CounterKey;

/// Hits by key.
#[derive(Clone, Debug)]
pub struct Sketch {
    slots: Vec<Counted>,
    /// Places in `slots`, by key.
    index: HashTable<usize>,
    room: usize,
    total: u64,
    /// No slot has fewer hits: they only grow.
    least: u64,
    /// Where the next search for the fewest begins.
    hand: usize,
}

/// A key with its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Of whom.
    pub key: CounterKey,
    /// Never fewer than there were.
    pub hits: u64,
    /// At most so many too many.
    pub over: u64,
    /// What people call the key; empty when nobody may know.
    pub name: String,
}

impl Sketch {
    /// An empty one with room for so many keys, at least one. Adding allocates nothing but names.
    pub fn new(room: usize) -> Self {
        let room = room.max(1);
        Self {
            slots: Vec::with_capacity(room),
            // Below half full, what was removed is cleaned up in place.
            index: HashTable::with_capacity(room * 3),
            room,
            total: 0,
            least: 0,
            hand: 0,
        }
    }

    /// Forgets everything and keeps the room.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.index.clear();
        (self.total, self.least, self.hand) = (0, 0, 0);
    }

    /// Adds hits of a key. `name` writes what it is called behind the end of an empty text; it is
    /// asked when the key gets its place.
    pub fn add(&mut self, key: CounterKey, hits: u64, name: impl FnOnce(&mut String)) {
        self.total = self.total.saturating_add(hits);
        if let Some(slot) = self.place(key).and_then(|place| self.slots.get_mut(place)) {
            slot.hits = slot.hits.saturating_add(hits);
            return;
        }
        let place = if self.slots.len() < self.room {
            let mut slot = Counted {
                key,
                hits,
                over: 0,
                name: String::new(),
            };
            name(&mut slot.name);
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let place = self.fewest();
            let Some(slot) = self.slots.get_mut(place) else {
                return;
            };
            let old = slot.key;
            slot.key = key;
            slot.over = slot.hits;
            slot.hits = slot.hits.saturating_add(hits);
            slot.name.clear();
            name(&mut slot.name);
            let gone = self.index.find_entry(word(old), |found| *found == place);
            if let Ok(entry) = gone {
                entry.remove();
            }
            place
        };
        let slots = &self.slots;
        let hash = |place: &usize| slots.get(*place).map_or(0, |slot| word(slot.key));
        self.index.insert_unique(word(key), place, hash);
    }

    /// The place with the fewest hits. Many callers who ask once each find it at the next place
    /// but a few: it has as many hits as the fewest of the latest full round.
    fn fewest(&mut self) -> usize {
        let (before, behind) = self.slots.split_at(self.hand.min(self.slots.len()));
        let round = || behind.iter().chain(before);
        let least = self.least;
        let found = round().position(|slot| slot.hits <= least);
        let steps = found.unwrap_or_else(|| {
            let fewest = round().enumerate().min_by_key(|(_, slot)| slot.hits);
            self.least = fewest.map_or(0, |(_, slot)| slot.hits);
            fewest.map_or(0, |(steps, _)| steps)
        });
        let place = (before.len() + steps) % self.slots.len().max(1);
        self.hand = place + 1;
        place
    }

    /// All hits of all keys.
    pub fn total(&self) -> u64 {
        self.total
    }

    fn place(&self, key: CounterKey) -> Option<usize> {
        let is_it = |place: &usize| self.slots.get(*place).is_some_and(|slot| slot.key == key);
        self.index.find(word(key), is_it).copied()
    }

    /// The most hits that a key may have which is not there.
    fn floor(&self) -> u64 {
        if self.slots.len() < self.room {
            return 0;
        }
        let hits = self.slots.iter().map(|slot| slot.hits);
        hits.min().unwrap_or_default()
    }
}

/// The keys are hashes already.
fn word(key: CounterKey) -> u64 {
    u64::try_from(key.bits() >> 64).unwrap_or_default()
}

/// What sketches of parts of a stream say of the whole: all their keys, most hits first, of equals
/// by key. The bounds are the sums of theirs.
pub fn merge(sketches: &[Sketch]) -> Vec<Counted> {
    let floors: Vec<u64> = sketches.iter().map(Sketch::floor).collect();
    let mut merged: HashMap<CounterKey, Counted> = HashMap::new();
    for sketch in sketches {
        for slot in &sketch.slots {
            merged.entry(slot.key).or_insert_with(|| Counted {
                hits: 0,
                over: 0,
                ..slot.clone()
            });
        }
    }
    for counted in merged.values_mut() {
        for (sketch, floor) in sketches.iter().zip(&floors) {
            let slot = sketch
                .place(counted.key)
                .and_then(|place| sketch.slots.get(place));
            let (hits, over) = slot.map_or((*floor, *floor), |slot| (slot.hits, slot.over));
            counted.hits = counted.hits.saturating_add(hits);
            counted.over = counted.over.saturating_add(over);
        }
    }
    let mut all: Vec<Counted> = merged.into_values().collect();
    all.sort_by_key(|counted| (std::cmp::Reverse(counted.hits), counted.key));
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap as Exact;

    use proptest::prelude::*;

    use super::*;

    const ROOM: usize = 5;

    /// Keys with hits; the low ones come often, so that there are heavy hitters.
    fn stream() -> impl Strategy<Value = Vec<(u128, u64)>> {
        let key = prop_oneof![0..3_u128, 0..12_u128, 0..60_u128];
        prop::collection::vec((key, 1..9_u64), 0..300)
    }

    /// Spread over both words, as hashes are.
    fn key(number: u128) -> CounterKey {
        CounterKey::from_bits(number << 64 | number)
    }

    fn sketch_of(stream: &[(u128, u64)]) -> Sketch {
        let mut sketch = Sketch::new(ROOM);
        for (number, hits) in stream {
            sketch.add(key(*number), *hits, |name| *name = format!("n{number}"));
        }
        sketch
    }

    /// The three promises, over `parts` streams that were counted apart.
    fn holds(parts: &[&[(u128, u64)]]) -> Result<(), TestCaseError> {
        let sketches: Vec<Sketch> = parts.iter().map(|part| sketch_of(part)).collect();
        let mut truth: Exact<CounterKey, u64> = Exact::new();
        let mut total = 0;
        for (number, hits) in parts.iter().copied().flatten() {
            *truth.entry(key(*number)).or_default() += hits;
            total += hits;
        }
        prop_assert_eq!(sketches.iter().map(Sketch::total).sum::<u64>(), total);
        let merged = merge(&sketches);
        let bound = total / ROOM as u64;
        for counted in &merged {
            let true_hits = truth.get(&counted.key).copied().unwrap_or_default();
            prop_assert!(counted.hits >= true_hits, "{counted:?} {true_hits}");
            prop_assert!(
                counted.hits - counted.over <= true_hits,
                "{counted:?} {true_hits}"
            );
            prop_assert!(counted.over <= bound, "{counted:?} of {total}");
            let number = counted.key.bits() >> 64;
            prop_assert_eq!(&counted.name, &format!("n{number}"));
        }
        for (key, hits) in truth {
            let there = merged.iter().any(|counted| counted.key == key);
            prop_assert!(there || hits <= bound, "{key:?} has {hits} of {total}");
        }
        prop_assert!(merged.is_sorted_by(|a, b| a.hits >= b.hits));
        Ok(())
    }

    proptest! {
        #[test]
        fn one_sketch_keeps_its_promises(stream in stream()) {
            holds(&[&stream])?;
            prop_assert!(sketch_of(&stream).slots.len() <= ROOM);
        }

        #[test]
        fn merged_ones_keep_them_too(parts in prop::collection::vec(stream(), 1..5)) {
            let parts: Vec<&[_]> = parts.iter().map(Vec::as_slice).collect();
            holds(&parts)?;
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let sketch = sketch_of(&[(1, 5), (2, 1), (1, 1)]);
        let counted = |number, hits| Counted {
            key: key(number),
            hits,
            over: 0,
            name: format!("n{number}"),
        };
        assert_eq!(merge(&[sketch]), [counted(1, 6), counted(2, 1)]);
    }

    #[test]
    fn a_cleared_sketch_is_a_new_one() {
        let mut sketch = sketch_of(&[(1, 5), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]);
        sketch.clear();
        assert_eq!((sketch.total(), sketch.floor()), (0, 0));
        sketch.add(key(6), 1, |_| {});
        assert_eq!(merge(&[sketch]).len(), 1);
    }
}
