//! Blocks of quota that this process took from Redis up front and serves from memory.
//!
//! # Never over the limit
//!
//! A block is charged in Redis like any cost, by the same script, before one unit of it is spent. A
//! block of a fixed window is spent only in the window that it was charged in: until the time that
//! the server said was left of it has passed *since the request was sent*, which is before the
//! server looked at its clock; no difference between clocks matters. It is given back only if the
//! server decides that before the window's end.
//!
//! A bucket has no window; its block is spent up to `max_staleness` after it was charged. So in any
//! stretch of time `t` it lets through at most burst + rate × (`t` + `max_staleness`), and in the
//! long run exactly its rate.
//!
//! # At most the blocks under it
//!
//! A block is held for `max_staleness` at the longest, used or not; what is left then goes back (see
//! [`super::slice_return`]), as does a block whose answer came too late for the request that it was
//! taken with. Lost is what a process holds that is killed, and what could not be given back because
//! Redis was away.
//!
//! A refund, a peek and a reset go to Redis. A peek then counts what is held here as left; a reset
//! voids what is held here, while other processes may spend or return theirs until its time is over.
//! What a changed limit finds in hand is not spent any more.
//!
//! # Several limits
//!
//! A request is served from memory when each of its limits is sliced and has enough in hand, under
//! either stacking; otherwise all of it goes to Redis and nothing in hand is touched. Blocks are
//! taken by the same message. What a refused request is told comes from Redis.
//!
//! # How large
//!
//! As much as was used lately in `max_staleness`, or the number that the rule gives; at most the
//! share `1 ÷ (2 × replicas)` of what is left, so that the last units are handed out one by one.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use dashmap::DashMap;
use smallvec::SmallVec;

use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::{ByKey, CounterKey},
        limit::Algorithm,
        time::{Span, Timestamp},
    },
    rules::{
        Stacking,
        limit::{Limit, Slice},
    },
    store::{
        Charge, Charges, Outcomes,
        redis::{batch::Wanted, flight::Flight, key::HashTag, shared::Shared, slice_late},
    },
};

/// Most counters with a slice. Others are decided by Redis each time.
const MOST: usize = 1 << 16;

/// Least time between two searches for counters that nobody uses, when there are too many.
const PAUSE: Span = Span::from_secs(1);

/// A counter that was not used for this long is forgotten when there are too many.
const FORGOTTEN: Span = Span::from_secs(10);

/// The first block, and by how much a block may be larger than the one before: one short rush must
/// not claim much.
const FIRST: u64 = 8;
const GROWTH: u64 = 8;

/// The store's clock ticks in microseconds.
pub(super) const TICK: Span = Span::from_micros(1);

/// The largest block.
const LARGEST_BLOCK: u64 = u32::MAX as u64;

/// Sliced counters of this process.
#[derive(Debug)]
pub(super) struct Slices {
    entries: DashMap<CounterKey, Entry, ByKey>,
    /// Of what is left of a limit, the part that one block may be.
    parts: u64,
    /// The process ends: no more blocks.
    closed: AtomicBool,
    /// When it was last searched for what nobody uses, in nanoseconds.
    searched: AtomicU64,
    /// Tells one block from the next on any counter.
    blocks: AtomicU64,
}

/// What is known of one counter.
#[derive(Debug)]
struct Entry {
    tag: HashTag,
    /// What the block was charged under.
    limit: Limit,
    /// Number of the block.
    block: u64,
    /// Units of the block that were not spent yet.
    left: u64,
    /// Steady time from which on they are not spent.
    until: Timestamp,
    /// End of the window that they belong to, by the store's clock; none for a bucket.
    end: Option<Timestamp>,
    /// What the store said was left besides, and by its clock when nothing would be used.
    seen: u64,
    reset_at: Timestamp,
    /// A request that takes a block is on its way.
    refilling: bool,
    /// Most units of the next block, by what was used.
    size: u64,
    /// Units used since.
    spent: u64,
    since: Timestamp,
    used: Timestamp,
}

/// A request that takes blocks besides what it asks for. While it lives nobody else takes blocks of
/// these counters; when it was not answered, what was known of them is forgotten.
pub(super) struct Plan<'s, 'r> {
    slices: &'s Slices,
    /// The request with a charge for each block behind the one that the block is for.
    pub(super) charges: Charges<'r>,
    /// Places of the blocks in it.
    blocks: SmallVec<[usize; 4]>,
    answered: bool,
    /// What it waits for, when it has been sent.
    pub(super) sent: Option<Sent>,
}

/// Where the answer to a request will be.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) shared: Arc<Shared>,
    pub(super) tag: HashTag,
    pub(super) flight: Arc<Flight>,
    /// Where in the reply it begins.
    pub(super) start: usize,
}

/// When a request left and was decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Steady time before it was sent.
    pub(super) sent: Timestamp,
    /// The store's clock in the reply.
    pub(super) store: Timestamp,
}

/// A block that was just taken: to be given back after this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) key: CounterKey,
    pub(super) block: u64,
    pub(super) hold: Span,
}

/// What is to be given back.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub(super) key: CounterKey,
    pub(super) tag: HashTag,
    pub(super) limit: Limit,
    pub(super) units: u64,
    /// Not from then on, by the store's clock.
    pub(super) end: Option<Timestamp>,
}

impl Drop for Plan<'_, '_> {
    fn drop(&mut self) {
        for place in &self.blocks {
            let key = self.charges.list[*place].key;
            if let Some(mut entry) = self.slices.entries.get_mut(&key) {
                entry.refilling = false;
                if !self.answered {
                    // The block may be charged and lost: that must not happen again and again.
                    (entry.seen, entry.size) = (0, 0);
                }
            }
        }
        if !self.answered
            && let Some(sent) = self.sent.take()
        {
            slice_late::return_when_landed(sent, &self.charges, &self.blocks);
        }
    }
}

impl Slices {
    pub(super) fn new(replicas: NonZeroU32) -> Self {
        Self {
            entries: DashMap::default(),
            parts: 2 * u64::from(replicas.get()),
            closed: AtomicBool::new(false),
            searched: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
        }
    }

    /// The answer to a request all of whose counters have enough in hand. `now` is steady, `store`
    /// the store's clock.
    pub(super) fn serve(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
        store: impl FnOnce() -> Timestamp,
    ) -> Option<Outcomes> {
        if !applies(charges) {
            return None;
        }
        let store = store();
        let mut outcomes = Outcomes::new();
        let mut blocks: SmallVec<[u64; 8]> = SmallVec::new();
        for charge in &charges.list {
            let spent = self.entries.get_mut(&charge.key).and_then(|mut entry| {
                let outcome = entry.spend(charge, charges.tell_more, now, store)?;
                Some((outcome, entry.block))
            });
            let Some((outcome, block)) = spent else {
                for (charge, block) in charges.list.iter().zip(&blocks) {
                    self.unspend(charge, *block);
                }
                return None;
            };
            outcomes.push(outcome);
            blocks.push(block);
        }
        Some(outcomes)
    }

    /// Puts back what was spent for a request that is not served after all.
    fn unspend(&self, charge: &Charge<'_>, block: u64) {
        if let Some(mut entry) = self.entries.get_mut(&charge.key)
            && entry.block == block
        {
            entry.left = entry.left.saturating_add(charge.cost);
            entry.spent = entry.spent.saturating_sub(charge.cost);
        }
    }

    /// The request with the blocks that it should take besides; none when it takes none.
    pub(super) fn plan<'s, 'r>(
        &'s self,
        charges: &Charges<'r>,
        now: Timestamp,
    ) -> Option<Plan<'s, 'r>> {
        if !applies(charges) || self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let mut plan = Plan {
            slices: self,
            charges: Charges {
                list: SmallVec::new(),
                ..charges.clone()
            },
            blocks: SmallVec::new(),
            answered: false,
            sent: None,
        };
        for charge in &charges.list {
            plan.charges.list.push(*charge);
            let entry = self.entries.get_mut(&charge.key);
            let block = entry.map_or(0, |mut entry| entry.next_block(charge, self.parts, now));
            if block > 0 {
                plan.blocks.push(plan.charges.list.len());
                plan.charges.list.push(Charge {
                    cost: block,
                    // It does not matter to the request whether there is a block.
                    shadow: true,
                    ..*charge
                });
            }
        }
        (!plan.blocks.is_empty()).then_some(plan)
    }

    /// Notes what the store said to a request without blocks.
    pub(super) fn saw(
        &self,
        tag: &HashTag,
        charges: &Charges<'_>,
        outcomes: &[Outcome],
        times: Times,
    ) {
        if !applies(charges) {
            return;
        }
        for (charge, outcome) in charges.list.iter().zip(outcomes) {
            if let Some(mut entry) = self.entries.get_mut(&charge.key) {
                entry.saw(charge, outcome, times, true);
            } else if outcome.allowed && self.has_room(times.sent) {
                let entry = Entry::new(tag, charge, outcome, times);
                self.entries.insert(charge.key, entry);
            }
        }
    }

    /// Adds what this process holds of a counter to what the store said of it, where nothing was to
    /// be taken.
    pub(super) fn add_held(
        &self,
        charges: &Charges<'_>,
        wanted: Wanted,
        outcomes: &mut [Outcome],
        now: Timestamp,
    ) {
        for (charge, outcome) in charges.list.iter().zip(outcomes) {
            let looks = wanted == Wanted::Look || charge.cost == 0;
            if !looks || charge.limit.slice.is_none() || charge.refund {
                continue;
            }
            let Some(entry) = self.entries.get(&charge.key) else {
                continue;
            };
            if !entry.is_of(charge.limit) || entry.until <= now {
                continue;
            }
            outcome.used_before = outcome.used_before.saturating_sub(entry.left);
            outcome.remaining = outcome.remaining.saturating_add(entry.left);
            if charge.cost.max(1) <= entry.left {
                outcome.allowed = true;
                outcome.retry = Retry::After(Span::ZERO);
            }
        }
    }

    /// Takes what is left of a block out of use; none when nothing is, or its window has ended.
    pub(super) fn take_back(&self, taken: &Taken) -> Option<Rest> {
        let mut entry = self.entries.get_mut(&taken.key)?;
        if entry.block != taken.block {
            return None;
        }
        entry.take_back(taken.key)
    }

    /// Takes all blocks out of use, for good.
    pub(super) fn close(&self) -> Vec<Rest> {
        self.closed.store(true, Ordering::Relaxed);
        let entries = self.entries.iter_mut();
        let rests = entries.filter_map(|mut entry| {
            let key = *entry.key();
            entry.take_back(key)
        });
        rests.collect()
    }

    /// A counter was reset: what was taken of it is void.
    pub(super) fn forget(&self, key: CounterKey) {
        self.entries.remove(&key);
    }

    fn has_room(&self, now: Timestamp) -> bool {
        if self.entries.len() < MOST {
            return true;
        }
        let searched = Timestamp::from_nanos(self.searched.load(Ordering::Relaxed));
        if searched.until(now) < PAUSE {
            return false;
        }
        self.searched.store(now.as_nanos(), Ordering::Relaxed);
        self.entries.retain(|_, entry| {
            entry.left > 0 || entry.refilling || entry.used.until(now) < FORGOTTEN
        });
        self.entries.len() < MOST
    }
}

impl Plan<'_, '_> {
    /// Keeps the blocks that were granted. Returns the outcomes of the request itself, and what is
    /// to be given back later.
    pub(super) fn landed(
        mut self,
        tag: &HashTag,
        outcomes: &[Outcome],
        times: Times,
    ) -> (Outcomes, SmallVec<[Taken; 4]>) {
        self.answered = true;
        self.sent = None;
        let (mut own, mut taken) = (Outcomes::new(), SmallVec::new());
        let untouched = is_untouched(&self.charges, outcomes);
        let answers = self.charges.list.iter().zip(outcomes);
        for (place, (charge, outcome)) in answers.enumerate() {
            let is_block = self.blocks.contains(&place);
            if !is_block {
                own.push(*outcome);
            }
            // A counter that was reset meanwhile begins anew: the block was charged afterwards, or
            // is lost.
            let Some(mut entry) = self.slices.entries.get_mut(&charge.key) else {
                continue;
            };
            entry.saw(charge, outcome, times, !is_block);
            if is_block && outcome.allowed && !untouched {
                let number = self.slices.blocks.fetch_add(1, Ordering::Relaxed) + 1;
                if let Some(hold) = entry.fill(tag, charge, outcome, times, number) {
                    taken.push(Taken {
                        key: charge.key,
                        block: number,
                        hold,
                    });
                }
            }
        }
        (own, taken)
    }
}

impl Entry {
    fn new(tag: &HashTag, charge: &Charge<'_>, outcome: &Outcome, times: Times) -> Self {
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

    fn is_of(&self, limit: &Limit) -> bool {
        let own = &self.limit;
        own.quota == limit.quota && own.algorithm == limit.algorithm
    }

    fn spend(
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
    fn next_block(&mut self, charge: &Charge<'_>, parts: u64, now: Timestamp) -> u64 {
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
    fn adapted(&mut self, slice: Slice, now: Timestamp) -> u64 {
        let took = u128::from(self.since.until(now).as_nanos().max(1_000));
        let used = u128::from(self.spent) * u128::from(slice.max_staleness.as_nanos()) / took;
        let most = self.size.saturating_mul(GROWTH).max(FIRST);
        self.size = u64::try_from(used).unwrap_or(u64::MAX).min(most);
        (self.spent, self.since) = (0, now);
        self.size
    }

    /// Notes what the store said to a charge. `used`: those units were used, not taken in advance.
    fn saw(&mut self, charge: &Charge<'_>, outcome: &Outcome, times: Times, used: bool) {
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
    fn fill(
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

    fn take_back(&mut self, key: CounterKey) -> Option<Rest> {
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

/// Of a request that got nothing, nothing was taken, whatever its parts say.
pub(super) fn is_untouched(charges: &Charges<'_>, outcomes: &[Outcome]) -> bool {
    charges.stacking == Stacking::AllOrNothing && charges.are_refused(outcomes)
}

/// Until when a block that was charged with this outcome may be given back, by the store's clock;
/// none: at any time.
pub(super) fn end_of(limit: &Limit, outcome: &Outcome, store: Timestamp) -> Option<Timestamp> {
    matches!(limit.algorithm, Algorithm::FixedWindow(_)).then(|| store + outcome.reset)
}

/// Whether slices have a say in it: something is taken, and every limit that is met is sliced, of
/// counters that are not the same.
fn applies(charges: &Charges<'_>) -> bool {
    let list = &charges.list;
    let sliced =
        |charge: &Charge<'_>| charge.limit.slice.is_some() && charge.cost > 0 && !charge.refund;
    !list.is_empty()
        && list.iter().all(sliced)
        && list
            .iter()
            .enumerate()
            .all(|(place, charge)| list[..place].iter().all(|other| other.key != charge.key))
}

#[cfg(test)]
mod tests;
