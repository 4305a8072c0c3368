//! One counter of which this process holds a block.

use super::{Rest, TICK, end_of, plan::Times};
use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::CounterKey,
        limit::Algorithm,
        time::{Span, Timestamp},
    },
    rules::limit::{Limit, Slice},
    store::{charges::Charge, redis::key::HashTag},
};

/// The first block, and by how much a block may be larger than the one before: one short rush must
/// not claim much.
const FIRST: u64 = 8;

const GROWTH: u64 = 8;

/// The largest block.
const LARGEST_BLOCK: u64 = u32::MAX as u64;

/// What is known of one counter.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) tag: HashTag,
    /// What the block was charged under.
    pub(super) limit: Limit,
    /// Number of the block.
    pub(super) block: u64,
    /// Units of the block that were not spent yet.
    pub(super) left: u64,
    /// Steady time from which on they are not spent.
    pub(super) until: Timestamp,
    /// End of the window that they belong to, by the store's clock; none for a bucket.
    pub(super) end: Option<Timestamp>,
    /// What the store said was left besides, and by its clock when nothing would be used.
    pub(super) seen: u64,
    pub(super) reset_at: Timestamp,
    /// A request that takes a block is on its way.
    pub(super) refilling: bool,
    /// Most units of the next block, by what was used.
    pub(super) size: u64,
    /// Units used since.
    pub(super) spent: u64,
    pub(super) since: Timestamp,
    pub(super) used: Timestamp,
}

impl Entry {
    pub(super) fn new(tag: &HashTag, charge: &Charge<'_>, outcome: &Outcome, times: Times) -> Self {
        Self {
            tag: tag.clone(),
            limit: charge.limit.clone(),
            block: 0,
            left: 0,
            until: Timestamp::ZERO,
            end: None,
            seen: outcome.remaining,
            reset_at: times.store + outcome.reset,
            refilling: false,
            size: 0,
            spent: charge.cost,
            since: times.sent,
            used: times.sent,
        }
    }

    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        let own = &self.limit;
        own.quota == limit.quota && own.algorithm == limit.algorithm
    }

    pub(super) fn spend(
        &mut self,
        charge: &Charge<'_>,
        tell_more: bool,
        now: Timestamp,
        store: Timestamp,
    ) -> Option<Outcome> {
        if charge.cost > self.left || now >= self.until || !self.is_of(charge.limit) {
            return None;
        }
        let remaining = self.seen.saturating_add(self.left);
        self.left -= charge.cost;
        self.spent = self.spent.saturating_add(charge.cost);
        self.used = now;
        let reset = store.until(self.reset_at);
        let quota = charge.limit.quota;
        let more = match charge.limit.algorithm {
            Algorithm::FixedWindow(_) => reset,
            // What comes back at the rate, one after the other.
            _ => reset.min(Span::from_nanos(
                quota.period().as_nanos().div_ceil(quota.units().max(1)),
            )),
        };
        Some(Outcome {
            allowed: true,
            used_before: charge.limit.capacity().saturating_sub(remaining),
            remaining: remaining.saturating_sub(charge.cost),
            reset,
            retry: Retry::After(Span::ZERO),
            delay: Span::ZERO,
            more: tell_more.then_some(more),
        })
    }

    /// Units to take besides; whoever gets some is the one that does.
    pub(super) fn next_block(&mut self, charge: &Charge<'_>, parts: u64, now: Timestamp) -> u64 {
        let Some(slice) = charge.limit.slice else {
            return 0;
        };
        if self.refilling || (self.left > 0 && !self.is_of(charge.limit)) {
            return 0;
        }
        let most = slice.size.unwrap_or_else(|| self.adapted(slice, now));
        let share = self.seen.saturating_sub(charge.cost) / parts;
        let block = most
            .saturating_sub(charge.cost)
            .min(share)
            .min(LARGEST_BLOCK);
        self.refilling = block > 0;
        block
    }

    /// What is used in `max_staleness`, as it was since the last time.
    pub(super) fn adapted(&mut self, slice: Slice, now: Timestamp) -> u64 {
        let took = u128::from(self.since.until(now).as_nanos().max(1_000));
        let used = u128::from(self.spent) * u128::from(slice.max_staleness.as_nanos()) / took;
        let most = self.size.saturating_mul(GROWTH).max(FIRST);
        self.size = u64::try_from(used).unwrap_or(u64::MAX).min(most);
        (self.spent, self.since) = (0, now);
        self.size
    }

    /// Notes what the store said to a charge. `used`: those units were used, not taken in advance.
    pub(super) fn saw(&mut self, charge: &Charge<'_>, outcome: &Outcome, times: Times, used: bool) {
        if self.left == 0 && !self.is_of(charge.limit) {
            self.limit = charge.limit.clone();
        }
        self.seen = outcome.remaining;
        self.reset_at = times.store + outcome.reset;
        self.used = times.sent;
        if outcome.allowed && used {
            self.spent = self.spent.saturating_add(charge.cost);
        }
    }

    /// Puts a block in. Returns for how long it is held if it is one of its own; none when it goes
    /// the way of the units that were there already.
    pub(super) fn fill(
        &mut self,
        tag: &HashTag,
        charge: &Charge<'_>,
        outcome: &Outcome,
        times: Times,
        number: u64,
    ) -> Option<Span> {
        let slice = charge.limit.slice?;
        let end = end_of(charge.limit, outcome, times.store);
        let hold = match end {
            // The instant in the reply may be a tick behind the server's clock.
            Some(_) => slice.max_staleness.min(outcome.reset.saturating_sub(TICK)),
            None => slice.max_staleness,
        };
        let until = times.sent + hold;
        if self.left > 0 && self.end == end && self.is_of(charge.limit) {
            // Both go when the older one does.
            self.left = self.left.saturating_add(charge.cost);
            self.until = self.until.min(until);
            return None;
        }
        // Units of a window that has ended are void.
        self.tag = tag.clone();
        self.limit = charge.limit.clone();
        (self.block, self.left) = (number, charge.cost);
        (self.until, self.end) = (until, end);
        Some(hold)
    }

    pub(super) fn take_back(&mut self, key: CounterKey) -> Option<Rest> {
        let units = std::mem::take(&mut self.left);
        // Nobody puts anything back into it.
        self.block = 0;
        (units > 0).then(|| Rest {
            key,
            tag: self.tag.clone(),
            limit: self.limit.clone(),
            units,
            end: self.end,
        })
    }
}
