//! Counters without a shared cache line: each thread adds to its own stripe, a reader sums them.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

/// Stripes per counter set. More threads than that share stripes, which costs time, not counts.
pub const STRIPES: usize = 8;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
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
        &self.0[MINE.get() % STRIPES].0
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
    pub fn add(&self, index: usize, by: u64) {
        if by == 0 {
            return;
        }
        let stripe = &self.stripes[MINE.get() % STRIPES].0;
        if let Some(counter) = stripe.get(index) {
            counter.fetch_add(by, Ordering::Relaxed);
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
    use super::*;

    #[test]
    fn sums_are_over_all_threads() {
        let counters = Striped::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| counters.add(1, 5));
            }
        });
        assert_eq!(counters.sums(), [0, 100]);
    }
}
