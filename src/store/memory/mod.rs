//! Counters in this process: sharded tables.
//!
//! A decision must hold several counters at once (all or nothing), so these are shards of our own
//! and not a `DashMap`: a `DashMap` documents that holding one reference while asking for another
//! can deadlock, and its raw shards would need the same sorted locking that is written here, plus
//! a lock word and a hasher that a counter key (already a keyed hash) has no use for. Own shards
//! also give a bound per shard and a sweep that takes one small lock at a time.
//!
//! Lock order: ascending shard index. Nothing is awaited under a lock.

mod cell;
mod shard;
mod table;

use std::num::NonZeroUsize;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::{
    model::{key::CounterKey, time::Timestamp},
    rules::Stacking,
    store::{
        Charge, Charges, Outcomes,
        memory::{shard::Shard, table::Room},
    },
};

/// What happens when a table is full of live counters and a new one is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The counter that would be fresh again soonest gives way; of equals the least used.
    #[default]
    EvictSoonest,
    /// The request is refused.
    Deny,
    /// The request passes uncounted.
    Allow,
}

/// Bounds of the memory store.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Most live counters. Default 4 million, about 300 MB when full.
    pub max_keys: NonZeroUsize,
    /// What happens beyond that.
    pub when_full: WhenFull,
    /// Number of shards, a power of two. The default keeps a shard at ten million keys so small
    /// that growing its table takes well under a millisecond.
    pub shards: NonZeroUsize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            max_keys: DEFAULT_MAX_KEYS,
            when_full: WhenFull::default(),
            shards: DEFAULT_SHARDS,
        }
    }
}

const DEFAULT_MAX_KEYS: NonZeroUsize = NonZeroUsize::new(4_000_000).unwrap();
const DEFAULT_SHARDS: NonZeroUsize = NonZeroUsize::new(4_096).unwrap();

/// Counters of this process.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    /// `shards.len() − 1`; the length is a power of two.
    mask: usize,
    /// Most counters per shard.
    shard_keys: usize,
    when_full: WhenFull,
}

type Held<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 8]>;

impl MemoryStore {
    /// An empty store. The number of shards is rounded up to a power of two.
    pub fn new(options: MemoryOptions) -> Self {
        let count = options.shards.get().next_power_of_two();
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(count).collect(),
            mask: count - 1,
            shard_keys: options.max_keys.get().div_ceil(count),
            when_full: options.when_full,
        }
    }

    /// Decides all charges of one request, in order.
    pub fn decide(&self, charges: &Charges<'_>, now: Timestamp) -> Outcomes {
        match charges.stacking {
            Stacking::Independent => self.each_alone(&charges.list, now),
            Stacking::AllOrNothing => self.all_or_nothing(charges, now),
        }
    }

    /// What [`MemoryStore::decide`] would say, all or nothing; changes nothing.
    pub fn look(&self, charges: &Charges<'_>, now: Timestamp) -> Outcomes {
        let list = &charges.list;
        let mut held = self.lock_ascending(list);
        let one = |(index, charge): (usize, &Charge<'_>)| {
            shard_of(&mut held, self.index(charge.key)).look(charge, now, cost_so_far(list, index))
        };
        list.iter().enumerate().map(one).collect()
    }

    fn each_alone(&self, charges: &[Charge<'_>], now: Timestamp) -> Outcomes {
        let one = |charge: &Charge<'_>| {
            let mut shard = self.shards[self.index(charge.key)].lock();
            if charge.refund {
                shard.give_back(charge, now)
            } else {
                shard.take(charge, now, charge.limit.count_denied, self.room())
            }
        };
        charges.iter().map(one).collect()
    }

    /// Looks at every charge under all locks, then commits all or none. The same counter twice
    /// adds up. Refunds are not part of the bargain: they are given back first, whatever follows.
    fn all_or_nothing(&self, charges: &Charges<'_>, now: Timestamp) -> Outcomes {
        let list = &charges.list;
        let mut held = self.lock_ascending(list);
        let looked: Outcomes = list
            .iter()
            .enumerate()
            .map(|(index, charge)| {
                let shard = shard_of(&mut held, self.index(charge.key));
                if charge.refund {
                    return shard.give_back(charge, now);
                }
                shard.look(charge, now, cost_so_far(list, index))
            })
            .collect();
        if charges.are_refused(&looked) {
            // What passed alone was not taken: show what is left without it.
            let untouched = |(charge, outcome): (&Charge<'_>, _)| {
                let shard = shard_of(&mut held, self.index(charge.key));
                shard.as_if_untouched(charge, now, outcome)
            };
            return list.iter().zip(looked).map(untouched).collect();
        }
        let take = |(charge, outcome): (&Charge<'_>, _)| {
            if charge.refund {
                return outcome;
            }
            shard_of(&mut held, self.index(charge.key)).take(charge, now, false, self.room())
        };
        list.iter().zip(looked).map(take).collect()
    }

    fn lock_ascending(&self, charges: &[Charge<'_>]) -> Held<'_> {
        let mut indexes: SmallVec<[usize; 8]> = charges
            .iter()
            .map(|charge| self.index(charge.key))
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        indexes
            .into_iter()
            .map(|index| (index, self.shards[index].lock()))
            .collect()
    }

    fn room(&self) -> Room {
        Room {
            keys: self.shard_keys,
            when_full: self.when_full,
        }
    }

    fn index(&self, key: CounterKey) -> usize {
        key.bits() as usize & self.mask
    }

    /// Forgets one counter; true when there was one.
    pub fn reset(&self, key: CounterKey) -> bool {
        self.shards[self.index(key)].lock().reset(key)
    }

    /// Frees the counters of one shard that are as good as fresh. Correctness does not depend on
    /// it. Returns how many are left in the shard; none when there is no such shard.
    pub fn sweep(&self, shard: usize, now: Timestamp) -> Option<usize> {
        Some(self.shards.get(shard)?.lock().sweep(now))
    }

    /// Number of shards, for [`MemoryStore::sweep`].
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Live and not yet swept counters.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// True when no counter is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counters that gave way to others since the start, and requests answered without a counter
    /// because the table was full.
    pub fn pressed_out(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.lock().pressed_out())
            .sum()
    }
}

fn shard_of<'h>(held: &'h mut Held<'_>, index: usize) -> &'h mut Shard {
    // `held` has the shard of every charge: it was made from the same list.
    let place = held
        .binary_search_by_key(&index, |(shard, _)| *shard)
        .unwrap_or(0);
    &mut held[place].1
}

/// The cost of a charge together with earlier ones of the same request on the same counter. A look
/// (cost 0) stays a look.
fn cost_so_far(charges: &[Charge<'_>], index: usize) -> u64 {
    let charge = &charges[index];
    if charge.cost == 0 {
        return 0;
    }
    let earlier = charges[..index]
        .iter()
        .filter(|other| other.key == charge.key && !other.refund);
    earlier.fold(charge.cost, |sum, other| sum.saturating_add(other.cost))
}
