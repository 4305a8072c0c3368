//! Counters without a shared cache line: each thread adds to its own stripe, a reader sums them.
//!
//! A stripe that one thread owns is written with a load and a store: an addition that other
//! processors see as one step costs some twenty cycles, and a decision counts half a dozen things.
//! Threads beyond the first [`OWNED`] share the stripes behind those, and do add in one step.

use std::{
    cell::{Cell, RefCell},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

/// Stripes of one thread each.
const OWNED: usize = 12;
/// Stripes of all other threads.
const SHARED: usize = 4;
/// Stripes per counter set.
pub const STRIPES: usize = OWNED + SHARED;

/// Owned stripes that have an owner, one bit each.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Spreads the threads that own none.
static NEXT: AtomicUsize = AtomicUsize::new(0);

const UNKNOWN: usize = usize::MAX;

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(UNKNOWN) };
    /// Gives the stripe back when the thread ends.
    static OWNERSHIP: RefCell<Option<Ownership>> = const { RefCell::new(None) };
}

/// The stripe of this thread, below [`STRIPES`].
#[inline]
fn mine() -> usize {
    match MINE.get() {
        UNKNOWN => choose(),
        mine => mine,
    }
}

#[cold]
fn choose() -> usize {
    let owned = Ownership::take().and_then(|ownership| {
        let stripe = ownership.0;
        // A thread that is ending cannot keep anything: it drops what it has taken.
        let kept = OWNERSHIP.try_with(|slot| *slot.borrow_mut() = Some(ownership));
        kept.ok().map(|()| stripe)
    });
    let stripe = owned.unwrap_or_else(shared);
    MINE.set(stripe);
    stripe
}

fn shared() -> usize {
    OWNED + NEXT.fetch_add(1, Ordering::Relaxed) % SHARED
}

/// The right to be the only writer of a stripe.
struct Ownership(usize);

impl Ownership {
    fn take() -> Option<Self> {
        // Acquires what the owner before has written.
        let free = |taken: usize| {
            let stripe = taken.trailing_ones() as usize;
            (stripe < OWNED).then_some(taken | 1 << stripe)
        };
        let before = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, free);
        Some(Self(before.ok()?.trailing_ones() as usize))
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        // Whatever this thread still counts goes elsewhere.
        MINE.set(shared());
        TAKEN.fetch_and(!(1 << self.0), Ordering::Release);
    }
}

/// Something of its own for each thread, behind a lock that only readers contend for.
#[derive(Debug)]
pub struct PerThread<T>([Own<T>; STRIPES]);

/// On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Own<T>(Mutex<T>);

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Own::default()))
    }
}

impl<T> PerThread<T> {
    /// This thread's.
    pub fn mine(&self) -> &Mutex<T> {
        &self.0[mine()].0
    }

    /// Everybody's.
    pub fn all(&self) -> impl Iterator<Item = &Mutex<T>> {
        self.0.iter().map(|Own(own)| own)
    }
}

/// A set of `N` counters. With `N` up to 8 one stripe is one cache line.
#[derive(Debug)]
pub struct Striped<const N: usize> {
    stripes: [Stripe<N>; STRIPES],
}

#[derive(Debug)]
#[repr(align(64))]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Striped<N> {
    fn default() -> Self {
        let stripe = |_| Stripe(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            stripes: std::array::from_fn(stripe),
        }
    }
}

impl<const N: usize> Striped<N> {
    /// Begins with these sums.
    pub fn starting_at(sums: [u64; N]) -> Self {
        let counters = Self::default();
        let [first, ..] = &counters.stripes;
        for (counter, sum) in first.0.iter().zip(sums) {
            counter.store(sum, Ordering::Relaxed);
        }
        counters
    }

    /// Adds to one counter. An `index` beyond `N` is ignored.
    #[inline]
    pub fn add(&self, index: usize, by: u64) {
        self.add_each([(index, by)]);
    }

    /// [`Striped::add`] for several counters, which finds the stripe once.
    #[inline]
    pub fn add_each<const M: usize>(&self, each: [(usize, u64); M]) {
        let mine = mine();
        let Some(stripe) = self.stripes.get(mine) else {
            return;
        };
        for (index, by) in each {
            let Some(counter) = stripe.0.get(index).filter(|_| by > 0) else {
                continue;
            };
            if mine < OWNED {
                let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
                counter.store(sum, Ordering::Relaxed);
            } else {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    /// The sums.
    pub fn sums(&self) -> [u64; N] {
        let mut sums = [0_u64; N];
        for stripe in &self.stripes {
            for (sum, counter) in sums.iter_mut().zip(&stripe.0) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn nothing_is_lost_whoever_counts() {
        const THREADS: usize = 3 * STRIPES;
        let counters = Striped::<2>::default();
        // Twice: the second threads own what the first ones gave back.
        for _ in 0..2 {
            let all = Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        counters.add(1, 1);
                        // All are there at once, so that some must share.
                        all.wait();
                        (0..10_000).for_each(|_| counters.add(1, 1));
                    });
                }
            });
        }
        assert_eq!(counters.sums(), [0, 2 * 10_001 * THREADS as u64]);
    }

    #[test]
    fn a_stripe_has_one_owner_at_a_time() {
        // Threads of other tests own some, and may give some back meanwhile.
        let owned: Vec<Ownership> = std::iter::from_fn(Ownership::take).collect();
        let mut stripes: Vec<usize> = owned.iter().map(|ownership| ownership.0).collect();
        stripes.sort_unstable();
        stripes.dedup();
        assert_eq!(stripes.len(), owned.len());
        assert!(stripes.iter().all(|stripe| *stripe < OWNED));
    }
}
