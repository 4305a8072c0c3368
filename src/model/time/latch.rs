//! A few numbers that all threads read and one rarely writes, without a lock.
//!
//! A sequence lock with two slots (the kernel calls it a latch, `seqcount_latch_t` in
//! `include/linux/seqlock.h`): the writer fills the slot that is not in force and then turns to
//! it. A reader never waits for a writer that was interrupted half-way; it repeats itself only
//! when a turn came while it read.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How many numbers there are.
pub(super) const WORDS: usize = 3;

#[derive(Debug)]
pub(super) struct Latch {
    /// Counts what was written; its lowest bit says which slot is in force.
    turn: AtomicU64,
    slots: [[AtomicU64; WORDS]; 2],
}

impl Latch {
    pub(super) fn new(words: [u64; WORDS]) -> Self {
        Self {
            turn: AtomicU64::new(0),
            slots: [words.map(AtomicU64::new), words.map(AtomicU64::new)],
        }
    }

    /// What `with` makes of the numbers, all of one write, that were in force until it was done.
    #[inline]
    pub(super) fn read<T>(&self, with: impl Fn([u64; WORDS]) -> T) -> T {
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            let [first, second, third] = &self.slots[slot(turn)];
            let made = with([
                first.load(Ordering::Relaxed),
                second.load(Ordering::Relaxed),
                third.load(Ordering::Relaxed),
            ]);
            // With the fence in `write`: whoever has seen a number of the next write but one into
            // this slot sees the turn that came before it.
            fence(Ordering::Acquire);
            if self.turn.load(Ordering::Relaxed) == turn {
                return made;
            }
        }
    }

    /// Puts `words` in force. Callers take turns.
    pub(super) fn write(&self, words: [u64; WORDS]) {
        let next = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        fence(Ordering::Release);
        for (place, word) in self.slots[slot(next)].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.turn.store(next, Ordering::Release);
    }
}

#[inline]
fn slot(turn: u64) -> usize {
    usize::from(turn & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use super::*;

    #[test]
    fn what_is_read_was_written_together_and_last() {
        let latch = Latch::new([0, 0, 0]);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let readers = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mut latest = 0;
                    while !over.load(Ordering::Relaxed) {
                        let [one, two, three] = latch.read(|words| words);
                        assert_eq!([one, two, three], [one, 2 * one, 3 * one]);
                        assert!(one >= latest, "{one} after {latest}");
                        latest = one;
                    }
                })
            });
            for number in 1..=200_000 {
                latch.write([number, 2 * number, 3 * number]);
                if readers.iter().any(thread::ScopedJoinHandle::is_finished) {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(latch.read(|[one, ..]| one), 200_000);
    }
}
