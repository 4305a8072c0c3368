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
//! `give_back`), as does a block whose answer came too late for the request that it was
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

mod entry;
pub(super) mod give_back;
mod late;
mod plan;

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use dashmap::DashMap;
use smallvec::SmallVec;

use self::entry::Entry;
pub(super) use self::plan::{Sent, Taken, Times};
use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::{ByKey, CounterKey},
        limit::Algorithm,
        time::{Span, Timestamp},
    },
    rules::{Stacking, limit::Limit},
    store::{
        charges::{Charge, Charges, Outcomes},
        redis::{batch::Wanted, key::HashTag},
    },
};

/// Most counters with a slice. Others are decided by Redis each time.
const MOST: usize = 1 << 16;

/// Least time between two searches for counters that nobody uses, when there are too many.
const PAUSE: Span = Span::from_secs(1);

/// A counter that was not used for this long is forgotten when there are too many.
const FORGOTTEN: Span = Span::from_secs(10);

/// The store's clock ticks in microseconds.
pub(super) const TICK: Span = Span::from_micros(1);

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
                let outcome = entry.spend(charge, charges.terms.tell_more, now, store)?;
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

/// Of a request that got nothing, nothing was taken, whatever its parts say.
pub(super) fn is_untouched(charges: &Charges<'_>, outcomes: &[Outcome]) -> bool {
    charges.terms.stacking == Stacking::AllOrNothing && charges.are_refused(outcomes)
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
