//! A dense array that grows in small pieces: what is in it never moves for others to come.
//!
//! Only the first piece grows by moving. Each further one has its full size from the beginning, so
//! that all memory of large tables comes in pieces of one size: what one table gives back fits the
//! next, and no more than one piece per table stands empty.

/// Elements of a piece.
pub(super) const PIECE: usize = 128;

/// Elements at positions `0..len`.
#[derive(Clone, Debug)]
pub(super) struct Slots<T> {
    /// All but the last two are full; the last may be empty: a spare, so that who comes and goes at
    /// the edge of a piece does not allocate each time.
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Slots<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, position: usize) -> Option<&T> {
        self.pieces.get(position / PIECE)?.get(position % PIECE)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, position: usize) -> Option<&mut T> {
        self.pieces
            .get_mut(position / PIECE)?
            .get_mut(position % PIECE)
    }

    /// Adds an element at the position `len`.
    pub(super) fn push(&mut self, element: T) {
        let piece = self.len / PIECE;
        if piece == self.pieces.len() {
            self.pieces.push(match piece {
                0 => Vec::new(),
                _ => Vec::with_capacity(PIECE),
            });
        }
        if let Some(piece) = self.pieces.get_mut(piece) {
            if piece.len() == piece.capacity() {
                piece.reserve_exact(more(piece.capacity()));
            }
            piece.push(element);
            self.len += 1;
        }
    }

    /// Takes an element out and puts the last one in its place.
    pub(super) fn swap_remove(&mut self, position: usize) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        if position > last {
            return None;
        }
        let piece = last / PIECE;
        let element = self.pieces.get_mut(piece)?.pop()?;
        self.len = last;
        // One empty piece is kept.
        self.pieces.truncate(self.len.div_ceil(PIECE) + 1);
        match self.get_mut(position) {
            Some(place) => Some(std::mem::replace(place, element)),
            None => Some(element),
        }
    }

    /// Gives back what is not needed soon: spares, and most of a first piece that has little in it.
    pub(super) fn shrink(&mut self) {
        self.pieces.truncate(self.len.div_ceil(PIECE));
        if let [first] = &mut *self.pieces
            && first.len() * 4 < first.capacity()
        {
            first.shrink_to(first.len() * 2);
        }
        if self.pieces.len() * 4 < self.pieces.capacity() {
            self.pieces.shrink_to(self.pieces.len() * 2);
        }
    }

    /// What the array takes, in bytes; what its elements have elsewhere is not in it.
    pub(super) fn bytes(&self) -> usize {
        let first = self.pieces.first().map_or(0, Vec::capacity);
        let others = self.pieces.len().saturating_sub(1) * PIECE;
        (first + others) * size_of::<T>() + self.pieces.capacity() * size_of::<Vec<T>>()
    }

    #[cfg(test)]
    /// What the next push takes in addition, in bytes, at most.
    pub(super) fn growth(&self) -> usize {
        let piece = match self.pieces.get(self.len / PIECE) {
            Some(piece) if piece.len() < piece.capacity() => return 0,
            Some(piece) => more(piece.capacity()),
            None if self.pieces.is_empty() => more(0),
            None => PIECE,
        };
        let pieces = if self.pieces.len() < self.pieces.capacity() {
            0
        } else {
            (self.pieces.capacity() * 2).max(LEAST) - self.pieces.capacity()
        };
        piece * size_of::<T>() + pieces * size_of::<Vec<T>>()
    }
}

/// Elements that the first piece begins with, and headers: as `Vec` does.
const LEAST: usize = 4;

/// By how many elements a full first piece grows.
fn more(capacity: usize) -> usize {
    capacity.clamp(LEAST, PIECE - capacity.min(PIECE - LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_a_vec_holds() {
        let (mut slots, mut plain) = (Slots::default(), Vec::new());
        let mut state = 1_u64;
        for step in 0..100_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Waves: more comes than goes, then more goes than comes.
            let comes = (state >> 40) % 100 < if (step / 2_000) % 2 == 0 { 70 } else { 28 };
            if comes {
                let before = slots.bytes();
                let growth = slots.growth();
                slots.push(step);
                assert_eq!(slots.bytes(), before + growth);
                plain.push(step);
            } else if !plain.is_empty() {
                let position = usize::try_from(state >> 33).unwrap() % plain.len();
                let gone = plain.swap_remove(position);
                assert_eq!(slots.swap_remove(position), Some(gone));
            }
            if step % 5_000 == 4_999 {
                slots.shrink();
            }
            assert_eq!(slots.len(), plain.len());
            if step % 101 == 0 {
                for (position, element) in plain.iter().enumerate() {
                    assert_eq!(slots.get(position), Some(element));
                }
                assert_eq!(slots.get(plain.len()), None);
            }
        }
        assert_eq!(slots.swap_remove(plain.len()), None);
    }

    #[test]
    fn what_is_full_wastes_nothing_and_what_is_empty_takes_nothing() {
        let mut slots = Slots::default();
        for n in 0..PIECE * 8 {
            slots.push(n);
        }
        let headers = 8 * size_of::<Vec<usize>>();
        assert_eq!(slots.bytes(), PIECE * 8 * size_of::<usize>() + headers);
        while slots.swap_remove(0).is_some() {}
        slots.shrink();
        assert_eq!(slots.bytes(), 0);
    }
}
