//! Counters in this process: sharded tables.
//!
//! A decision must hold several counters at once (all or nothing), so these are shards of our own
//! and not a `DashMap`: a `DashMap` documents that holding one reference while asking for another
//! can deadlock, and its raw shards would need the same sorted locking that is written here, plus
//! a lock word and a hasher that a counter key (already a keyed hash) has no use for. Own shards
//! also give a bound per shard and a sweep that takes one small lock at a time.
//!
//! The limits of one rule have [sibling](CounterKey::sibling) keys: their counters are in one shard, and
//! in one place of its index. So a shard is full of whole callers, and a rule has at most as many limits
//! as [`MOST_LIMITS`](crate::rules::tree::MOST_LIMITS).
//!
//! Lock order: ascending shard index. Nothing is awaited under a lock.

mod budget;
mod cell;
mod index;
mod saved;
mod shard;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod weight;

use std::num::NonZeroUsize;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::{
    algorithm::Outcome,
    model::{
        key::CounterKey,
        limit::{Algorithm, State},
        time::{Span, Timestamp},
    },
    rules::Stacking,
    store::{
        charges::{Charge, Charges, Outcomes, Terms, cost_so_far},
        memory::{
            budget::Budget,
            cell::{Cell, LogCell},
            shard::{Need, Place, Room, Shard, without_counter},
            table::Table,
        },
    },
};

/// What happens when a table is full of live counters and a new one is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The counter that matters least gives way: the one whose units used would come back soonest at
    /// its limit's rate; of equals the one that is fresh again soonest.
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
    /// Most live counters. Default 4 million, about 240 MB when full.
    pub max_keys: NonZeroUsize,
    /// Most memory for counters and the entries of logs, in bytes. None: a gigabyte, or as much as
    /// `max_keys` counters of constant size need, if that is more.
    pub max_bytes: Option<NonZeroUsize>,
    /// What happens beyond that.
    pub when_full: WhenFull,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            max_keys: DEFAULT_MAX_KEYS,
            max_bytes: None,
            when_full: WhenFull::default(),
        }
    }
}

const DEFAULT_MAX_KEYS: NonZeroUsize = NonZeroUsize::new(4_000_000).unwrap();
const SWEEP_GRACE: Span = Span::from_secs(1);
/// Fewer keys per shard than this, and some shards would be full long before others.
const LEAST_SHARD_KEYS: usize = 512;
/// Most keys of a shard. Whatever one lock covers at a time is less than so many steps: building a
/// larger index, looking for what has ended.
const MOST_SHARD_KEYS: usize = 8_192;
const _: () = assert!(MOST_SHARD_KEYS <= table::MOST);
/// Enough for many threads, unless shards would become too large.
const SHARDS: usize = 512;

/// Less memory per shard than this, and pieces of tables that are not full would be much of it.
const LEAST_SHARD_BYTES: usize = 128 << 10;
/// Unless told otherwise.
const LEAST_MAX_BYTES: usize = 1 << 30;
/// Ample for a counter of constant size.
const COUNTER_BYTES: usize = 80;

/// How many shards so many keys in so many bytes are put into: a power of two.
fn shards(max_keys: usize, max_bytes: usize) -> usize {
    let fewest = max_keys.div_ceil(MOST_SHARD_KEYS);
    let most = (max_keys / LEAST_SHARD_KEYS).min(max_bytes / LEAST_SHARD_BYTES);
    SHARDS.min(most.max(1)).max(fewest).next_power_of_two()
}

/// Counters of this process.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    /// `shards.len() − 1`; the length is a power of two.
    mask: usize,
    room: Room,
}

type Held<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 8]>;

/// One for each charge of a request.
type Each<T> = SmallVec<[T; 16]>;

impl MemoryStore {
    /// An empty store.
    pub fn new(options: MemoryOptions) -> Self {
        let most = options.max_keys.get();
        let ample = most.saturating_mul(COUNTER_BYTES).max(LEAST_MAX_BYTES);
        let max_bytes = options.max_bytes.map_or(ample, NonZeroUsize::get);
        let max_keys = most.min(max_bytes / Table::<State>::SLOT).max(1);
        let count = shards(max_keys, max_bytes);
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(count).collect(),
            mask: count - 1,
            room: Room {
                keys: max_keys.div_ceil(count),
                budget: Budget::new(max_bytes, count),
                when_full: options.when_full,
            },
        }
    }

    /// Decides all charges of one request, in order.
    pub fn decide(&self, charges: &Charges<'_>, now: Timestamp) -> Outcomes {
        let mut outcomes = Outcomes::new();
        self.decide_into(charges, now, &mut outcomes);
        outcomes
    }

    /// [`MemoryStore::decide`] that writes the outcomes into their place, which is empty.
    pub fn decide_into(&self, charges: &Charges<'_>, now: Timestamp, outcomes: &mut Outcomes) {
        match (&*charges.list, charges.terms.stacking) {
            // With nobody to fall with.
            ([charge], _) => outcomes.push(self.decide_one(charges.terms, charge, now)),
            (_, Stacking::Independent) => self.each_alone(charges, now, outcomes),
            (_, Stacking::AllOrNothing) => self.all_or_nothing(charges, now, outcomes),
        }
    }

    /// Decides a request of one charge.
    #[inline]
    pub fn decide_one(&self, terms: Terms, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let mut shard = self.shard(charge).lock();
        self.alone(terms, charge, &mut shard, now)
    }

    /// What [`MemoryStore::decide`] would say if all charges were asked for together; takes nothing
    /// and gives nothing back. What is used and left is told as it stands.
    pub fn look(&self, charges: &Charges<'_>, now: Timestamp) -> Outcomes {
        let list = &charges.list;
        let mut held = self.lock_ascending(list);
        let one = |(index, charge): (usize, &Charge<'_>)| {
            let shard = shard_of(&mut held, self.index(charge.key));
            let place = shard.find(charge);
            let looked = shard.look(charge, place, now, cost_so_far(list, index));
            let looked = charges.terms.within_patience(charge, looked);
            let untouched = shard.as_if_untouched(charge, place, now, looked);
            with_more(charges, shard, (charge, place), now, untouched)
        };
        list.iter().enumerate().map(one).collect()
    }

    /// Limits of one rule have their counters in one shard: it is locked once for all of them.
    #[inline(never)]
    fn each_alone(&self, charges: &Charges<'_>, now: Timestamp, outcomes: &mut Outcomes) {
        let mut latest: Option<(usize, MutexGuard<'_, Shard>)> = None;
        for charge in &charges.list {
            let index = self.index(charge.key);
            if latest.as_ref().is_none_or(|(shard, _)| *shard != index) {
                // Never two at once.
                drop(latest.take());
            }
            let (_, shard) = latest.get_or_insert_with(|| (index, self.shards[index].lock()));
            outcomes.push(self.alone(charges.terms, charge, shard, now));
        }
        drop(latest);
        if charges.are_refused(outcomes) {
            self.hint_at_all(charges, outcomes, now);
        }
    }

    /// Decides a charge that stands for itself.
    #[inline]
    fn alone(
        &self,
        terms: Terms,
        charge: &Charge<'_>,
        shard: &mut Shard,
        now: Timestamp,
    ) -> Outcome {
        let mut outcome = if charge.refund {
            shard.give_back(charge, now)
        } else {
            self.take_alone(terms, charge, shard, now)
        };
        if terms.tell_more {
            outcome = shard.with_more(charge, Place::default(), now, outcome);
        }
        outcome
    }

    #[inline]
    fn take_alone(
        &self,
        terms: Terms,
        charge: &Charge<'_>,
        shard: &mut Shard,
        now: Timestamp,
    ) -> Outcome {
        let mut place = Place::default();
        if charge.limit.algorithm == Algorithm::LeakyQueue {
            // A slot too far ahead must not be taken.
            place = shard.find(charge);
            let looked = shard.look(charge, place, now, charge.cost);
            let outcome = terms.within_patience(charge, looked);
            if looked.allowed && !outcome.allowed {
                return shard.as_if_untouched(charge, place, now, outcome);
            }
        }
        let count_denied = charge.limit.count_denied && terms.stacking == Stacking::Independent;
        let mut outcome = shard.take(charge, place, now, count_denied, &self.room);
        if charge.limit.algorithm == Algorithm::LeakyQueue {
            outcome = terms.within_patience(charge, outcome);
        }
        outcome
    }

    /// What passed of a refused request is gone all the same, and has to come back before the same
    /// request can pass as a whole.
    fn hint_at_all(&self, charges: &Charges<'_>, outcomes: &mut Outcomes, now: Timestamp) {
        for (index, charge) in charges.list.iter().enumerate() {
            if !charge.refund {
                let cost = cost_so_far(&charges.list, index);
                let mut shard = self.shard(charge).lock();
                let again = shard.look(charge, Place::default(), now, cost);
                let again = charges.terms.within_patience(charge, again);
                outcomes[index].retry = again.retry;
            }
        }
    }

    /// Looks at every charge under all locks, then commits all or none. The same counter twice
    /// adds up. Refunds are not part of the bargain: they are given back whatever follows, each in
    /// its turn.
    #[inline(never)]
    fn all_or_nothing(&self, charges: &Charges<'_>, now: Timestamp, outcomes: &mut Outcomes) {
        let list = &*charges.list;
        let mut held = self.lock_ascending(list);
        // All are looked for before one is looked at: what they wait for of the memory comes together.
        let places: Each<Place> = list
            .iter()
            .map(|charge| shard_of(&mut held, self.index(charge.key)).find(charge))
            .collect();
        // Whose slot lies too far ahead: of a shadow rule, that does not refuse the request.
        let mut too_far: Each<bool> = SmallVec::from_elem(false, list.len());
        for (index, charge) in list.iter().enumerate() {
            let (shard, place) = (shard_of(&mut held, self.index(charge.key)), places[index]);
            if charge.refund {
                outcomes.push(shard.give_back(charge, now));
                continue;
            }
            let looked = shard.look(charge, place, now, cost_so_far(list, index));
            let mut outcome = charges.terms.within_patience(charge, looked);
            too_far[index] = looked.allowed && !outcome.allowed;
            if too_far[index] {
                outcome = shard.as_if_untouched(charge, place, now, outcome);
            }
            outcomes.push(outcome);
        }
        let roomless = self.without_room(list, &mut held, outcomes, now);
        for index in &roomless {
            outcomes[*index] = without_counter(outcomes[*index]);
            let shard = shard_of(&mut held, self.index(list[*index].key));
            shard.count_roomless();
        }
        let refused = charges.are_refused(outcomes);
        for (index, charge) in list.iter().enumerate() {
            let (shard, place) = (shard_of(&mut held, self.index(charge.key)), places[index]);
            let mut outcome = outcomes[index];
            if !refused && !charge.refund && !too_far[index] {
                outcome = shard.take(charge, place, now, false, &self.room);
                if !outcome.allowed {
                    outcome = charges.terms.within_patience(charge, outcome);
                }
            } else if refused && !roomless.contains(&index) {
                // What passed alone was not taken: show what is left without it.
                outcome = shard.as_if_untouched(charge, place, now, outcome);
            }
            outcomes[index] = with_more(charges, shard, (charge, place), now, outcome);
        }
    }

    /// Which of the charges pass but need a counter that there is no room for: to find that out
    /// while committing would be too late.
    fn without_room(
        &self,
        list: &[Charge<'_>],
        held: &mut Held<'_>,
        outcomes: &Outcomes,
        now: Timestamp,
    ) -> Each<usize> {
        let mut roomless = SmallVec::new();
        if self.room.when_full != WhenFull::Deny {
            return roomless;
        }
        let mut new: Each<(CounterKey, Need)> = SmallVec::new();
        for (index, (charge, outcome)) in list.iter().zip(outcomes).enumerate() {
            let home = self.index(charge.key);
            let shard = shard_of(held, home);
            let counts = outcome.allowed && charge.cost > 0 && !charge.refund;
            // Looked for anew: to make room for one may have freed another that had ended.
            if !counts || shard.find(charge).is_known() {
                continue;
            }
            if !new.iter().any(|(key, _)| *key == charge.key) {
                new.push((charge.key, Need::of(charge)));
            }
            let here = new.iter().filter(|(key, _)| self.index(*key) == home);
            let need = here.fold(Need::default(), |all, (_, need)| all.and(*need));
            if !shard.has_room(need, now, &self.room) {
                roomless.push(index);
            }
        }
        roomless
    }

    fn lock_ascending(&self, charges: &[Charge<'_>]) -> Held<'_> {
        let mut indexes: Each<usize> = charges
            .iter()
            .map(|charge| self.index(charge.key))
            .collect();
        // Limits of one rule: one shard.
        indexes.dedup();
        if indexes.len() > 1 {
            indexes.sort_unstable();
            indexes.dedup();
        }
        indexes
            .into_iter()
            .map(|index| (index, self.shards[index].lock()))
            .collect()
    }

    fn index(&self, key: CounterKey) -> usize {
        (key.bits() >> 32) as usize & self.mask
    }

    fn shard(&self, charge: &Charge<'_>) -> &Mutex<Shard> {
        &self.shards[self.index(charge.key)]
    }

    /// Forgets one counter; true when there was one.
    pub fn reset(&self, key: CounterKey) -> bool {
        self.shards[self.index(key)].lock().reset(key)
    }

    /// Frees the counters of one shard that have been as good as fresh for a second: a request that
    /// read its clock before the sweep must find what had not ended for it. Correctness does not
    /// depend on sweeping. The lock is let go after every thousand counters. Returns how many are
    /// left in the shard; none when there is no such shard.
    pub fn sweep(&self, shard: usize, now: Timestamp) -> Option<usize> {
        let shard = self.shards.get(shard)?;
        sweep_table::<State>(shard, now - SWEEP_GRACE);
        sweep_table::<LogCell>(shard, now - SWEEP_GRACE);
        let mut shard = shard.lock();
        shard.give_back_memory(&self.room);
        Some(shard.len())
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

    /// Live counters that gave way to others since the start.
    pub fn evicted(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().evicted()).sum()
    }

    /// Charges answered without a counter because the table was full.
    pub fn roomless(&self) -> u64 {
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().roomless()).sum()
    }

    /// The memory that counters take, in bytes: tables as they are, and the entries of logs.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// The same as [`MemoryStore::max_bytes`] bounds it: tables as they are when they are full.
    pub fn needed_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().needed()).sum()
    }

    /// Most memory for counters, in bytes.
    pub fn max_bytes(&self) -> usize {
        self.room.budget.most()
    }

    /// Most live counters.
    pub fn max_keys(&self) -> usize {
        self.room.keys.saturating_mul(self.shards.len())
    }

    /// Live counters that gave way to others since the start, and charges answered without a
    /// counter because the table was full.
    pub fn pressed_out(&self) -> u64 {
        self.evicted() + self.roomless()
    }
}

fn sweep_table<C: Cell>(shard: &Mutex<Shard>, now: Timestamp) {
    let mut walk = C::table(&mut shard.lock()).begin_sweep(now);
    while let Some(from) = walk {
        walk = C::table(&mut shard.lock()).sweep(from, now);
    }
}

fn shard_of<'h>(held: &'h mut Held<'_>, index: usize) -> &'h mut Shard {
    // `held` has the shard of every charge: it was made from the same list.
    let place = held
        .binary_search_by_key(&index, |(shard, _)| *shard)
        .unwrap_or(0);
    &mut held[place].1
}

fn with_more(
    charges: &Charges<'_>,
    shard: &mut Shard,
    (charge, place): (&Charge<'_>, Place),
    now: Timestamp,
    outcome: Outcome,
) -> Outcome {
    if charges.terms.tell_more {
        shard.with_more(charge, place, now, outcome)
    } else {
        outcome
    }
}
