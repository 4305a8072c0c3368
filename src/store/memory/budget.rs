//! One bound on the memory of all counters, without a number that every decision writes to.
//!
//! Half of it is dealt out in equal parts: a shard always has that much to itself, so that whoever
//! fills the others leaves it room. The other half is common: it is for what is not spread evenly,
//! the entries of long logs above all, and is borrowed in pieces.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What is borrowed at a time, in bytes: some seventy counters.
const STEP: usize = 4 << 10;
/// New counters leave this part of the common half to logs that are there already.
const KEPT_FOR_OLD: usize = 8;

/// Memory of many shards together.
#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    /// What each shard has to itself.
    own: usize,
    common: usize,
    /// Of the common half.
    left: AtomicUsize,
}

/// What one shard has borrowed.
#[derive(Debug, Default)]
pub(super) struct Loan(usize);

/// Who needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A counter that is not there yet.
    New,
    /// A log that grows.
    Old,
}

impl Budget {
    /// So many bytes for so many shards.
    pub(super) fn new(most: usize, shards: usize) -> Self {
        let own = most / 2 / shards;
        let common = most - own * shards;
        Self {
            most,
            own,
            common,
            left: AtomicUsize::new(common),
        }
    }

    /// The bound, in bytes.
    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// Whether a shard may take up `bytes` in all; borrows what that needs.
    pub(super) fn fits(&self, loan: &mut Loan, bytes: usize, what: For) -> bool {
        let wanted = bytes.saturating_sub(self.own).next_multiple_of(STEP);
        let Some(more) = wanted.checked_sub(loan.0) else {
            return true;
        };
        if more == 0 {
            return true;
        }
        let kept = match what {
            For::New => self.common / KEPT_FOR_OLD,
            For::Old => 0,
        };
        let take = |left: usize| left.checked_sub(more).filter(|rest| *rest >= kept);
        let order = Ordering::Relaxed;
        let took = self.left.try_update(order, order, take).is_ok();
        if took {
            loan.0 = wanted;
        }
        took
    }

    /// Gives back what a shard that takes up `bytes` does not need; a little is kept, for who comes
    /// and goes.
    pub(super) fn give_back(&self, loan: &mut Loan, bytes: usize) {
        let wanted = bytes.saturating_sub(self.own).next_multiple_of(STEP) + STEP;
        if let Some(spare) = loan.0.checked_sub(wanted)
            && spare > 0
        {
            self.left.fetch_add(spare, Ordering::Relaxed);
            loan.0 = wanted;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_never_get_more_than_there_is() {
        let budget = Budget::new(1 << 20, 4);
        let mut loans: [Loan; 4] = Default::default();
        // The first takes all that is common; the others still have their own.
        let mut first = 0;
        while budget.fits(&mut loans[0], first + 100, For::Old) {
            first += 100;
        }
        assert!(first > (1 << 19) + (1 << 17) - 2 * STEP, "{first}");
        for loan in &mut loans[1..] {
            assert!(budget.fits(loan, 1 << 17, For::New));
            assert!(!budget.fits(loan, (1 << 17) + 1, For::Old));
        }
        assert!(first + 3 * (1 << 17) <= 1 << 20);
        // What is given back is there for others.
        budget.give_back(&mut loans[0], 0);
        assert!(budget.fits(&mut loans[1], 1 << 18, For::New));
    }

    #[test]
    fn who_is_new_leaves_something_to_who_was_there() {
        let budget = Budget::new(1 << 20, 1);
        let mut loan = Loan::default();
        let mut bytes = 0;
        while budget.fits(&mut loan, bytes + STEP, For::New) {
            bytes += STEP;
        }
        assert_eq!(bytes, (1 << 19) + (1 << 19) / 8 * 7);
        assert!(budget.fits(&mut loan, 1 << 20, For::Old));
        assert!(!budget.fits(&mut loan, (1 << 20) + 1, For::Old));
    }
}
