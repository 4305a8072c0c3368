//! Where in a dense array the counter with a given key stands.
//!
//! A hash table of four bytes a place, apart from what it names: open addressing with linear
//! probing, at most five eighths full. A place holds a *tag*, some bits of the key, and the
//! position of the counter. The tag alone says where an entry belongs. So a table of twice the size
//! is filled without a look at a single counter, in microseconds, and removing leaves no tombstones
//! behind: what follows moves up (Knuth, *The Art of Computer Programming* 3, 6.4, algorithm R).

/// Bits of a position.
const POSITION_BITS: u32 = 14;
/// Bits of a tag.
const TAG_BITS: u32 = u32::BITS - POSITION_BITS;
/// Most entries.
pub(super) const MOST: usize = (1 << POSITION_BITS) - 1;
/// Places of the smallest table.
const LEAST_PLACES: usize = 8;
/// At most so many eighths of the places are taken: a miss looks at four places, a hit at two.
const FULL_EIGHTHS: usize = 5;
/// A place that is free.
const FREE: u32 = 0;

/// Positions by tag.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// A power of two, or none. Each `tag << POSITION_BITS | position + 1`.
    places: Box<[u32]>,
    used: usize,
}

/// Bits of a key, of which the uppermost choose the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u32);

impl Tag {
    /// From the uppermost bits of a key.
    pub(super) const fn new(key_high: u64) -> Self {
        Self((key_high >> (u64::BITS - TAG_BITS)) as u32)
    }

    const fn of(entry: u32) -> Self {
        Self(entry >> POSITION_BITS)
    }

    /// The entry for a position below [`MOST`].
    #[expect(clippy::cast_possible_truncation, reason = "cut to its bits")]
    const fn at(self, position: usize) -> u32 {
        (self.0 << POSITION_BITS) | ((position + 1) & MOST) as u32
    }
}

const fn position(entry: u32) -> usize {
    (entry as usize & MOST).wrapping_sub(1)
}

impl Index {
    /// The position that has this tag and is right.
    #[inline]
    pub(super) fn find(&self, tag: Tag, is_right: impl Fn(usize) -> bool) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut place = self.home(tag);
        // Ends: some places are always free.
        loop {
            let entry = *self.places.get(place & mask)?;
            if entry == FREE {
                return None;
            }
            if Tag::of(entry) == tag && is_right(position(entry)) {
                return Some(position(entry));
            }
            place += 1;
        }
    }

    /// Adds a position below [`MOST`] that is not here.
    pub(super) fn insert(&mut self, tag: Tag, position: usize) {
        if (self.used + 1) * 8 > self.places.len() * FULL_EIGHTHS {
            self.resize((self.places.len() * 2).max(LEAST_PLACES));
        }
        self.put(tag.at(position));
        self.used += 1;
    }

    /// Takes a position out.
    pub(super) fn remove(&mut self, tag: Tag, position: usize) {
        let Some(mut hole) = self.place_of(tag.at(position)) else {
            return;
        };
        let mask = self.places.len() - 1;
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let entry = self.places[next];
            if entry == FREE {
                break;
            }
            let from_home = next.wrapping_sub(self.home(Tag::of(entry))) & mask;
            let from_hole = next.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.places[hole] = entry;
                hole = next;
            }
        }
        self.places[hole] = FREE;
        self.used -= 1;
    }

    /// What stood at `from` stands at `to`, below [`MOST`].
    pub(super) fn renumber(&mut self, tag: Tag, from: usize, to: usize) {
        if let Some(place) = self.place_of(tag.at(from)) {
            self.places[place] = tag.at(to);
        }
    }

    /// Becomes smaller if most of it is free.
    pub(super) fn shrink(&mut self) {
        let fitting = (self.used * 2 * 8).div_ceil(FULL_EIGHTHS);
        let fitting = fitting.next_power_of_two().max(LEAST_PLACES);
        if self.used == 0 {
            self.places = Box::default();
        } else if fitting < self.places.len() {
            self.resize(fitting);
        }
    }

    /// Places, taken or not: so many are looked at when it grows, at most.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// What it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    #[cfg(test)]
    /// What the next insertion takes in addition, in bytes.
    pub(super) fn growth(&self) -> usize {
        if (self.used + 1) * 8 > self.places.len() * FULL_EIGHTHS {
            self.bytes().max(LEAST_PLACES * size_of::<u32>())
        } else {
            0
        }
    }

    #[inline]
    fn home(&self, tag: Tag) -> usize {
        (tag.0 as usize * self.places.len()) >> TAG_BITS
    }

    fn place_of(&self, entry: u32) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut place = self.home(Tag::of(entry)) & mask;
        while self.places[place] != entry {
            if self.places[place] == FREE {
                return None;
            }
            place = (place + 1) & mask;
        }
        Some(place)
    }

    /// Puts an entry into the first free place from its home on.
    fn put(&mut self, entry: u32) {
        let mask = self.places.len() - 1;
        let mut place = self.home(Tag::of(entry)) & mask;
        while self.places[place] != FREE {
            place = (place + 1) & mask;
        }
        self.places[place] = entry;
    }

    fn resize(&mut self, places: usize) {
        let old = std::mem::replace(&mut self.places, vec![FREE; places].into());
        for entry in old {
            if entry != FREE {
                self.put(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Bits that look like a key's.
    fn random(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*state ^ (*state >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn it_finds_what_a_map_finds_whatever_comes_and_goes() {
        // With few different tags, everything stands in everything's way, over the end too.
        for different in [u64::MAX, 3, 0] {
            let (mut index, mut keys) = (Index::default(), HashMap::new());
            let mut state = 1;
            for step in 0..20_000_u64 {
                let key = if different == u64::MAX {
                    random(&mut state)
                } else {
                    (random(&mut state) % (different + 1)).wrapping_neg()
                };
                let at = usize::try_from(random(&mut state) % 300).unwrap();
                if let Some(known) = keys.remove(&at) {
                    index.remove(Tag::new(known), at);
                } else {
                    index.insert(Tag::new(key), at);
                    keys.insert(at, key);
                }
                if step % 1_000 == 0 {
                    index.shrink();
                }
                if step % 37 == 0 {
                    for (at, key) in &keys {
                        assert_eq!(index.find(Tag::new(*key), |found| found == *at), Some(*at));
                    }
                    assert_eq!(index.find(Tag::new(key), |found| found == 300), None);
                }
            }
            assert_eq!(index.used, keys.len());
        }
    }

    #[test]
    fn it_renumbers() {
        let mut index = Index::default();
        let tag = Tag::new(5 << 50);
        index.insert(tag, 0);
        index.insert(tag, 7);
        index.renumber(tag, 7, 3);
        assert_eq!(index.find(tag, |position| position == 3), Some(3));
        assert_eq!(index.find(tag, |position| position == 7), None);
        index.remove(tag, 0);
        index.remove(tag, 3);
        assert_eq!(index.find(tag, |_| true), None);
        index.shrink();
        assert_eq!(index.bytes(), 0);
    }

    #[test]
    fn it_takes_four_to_thirteen_bytes_an_entry() {
        let (mut index, mut state) = (Index::default(), 1);
        for position in 0..MOST {
            let before = index.bytes();
            let growth = index.growth();
            index.insert(Tag::new(random(&mut state)), position);
            assert_eq!(index.bytes(), before + growth);
            assert!(index.bytes() <= ((position + 1) * 64).div_ceil(5).max(32));
        }
        assert_eq!(index.places(), 32_768);
    }
}
