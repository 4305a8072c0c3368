//! One shard: the counters behind one lock.

use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::CounterKey,
        limit::{Algorithm, State},
        time::{Span, Timestamp},
    },
    store::{
        charges::Charge,
        memory::{
            WhenFull,
            budget::{Budget, For, Loan},
            cell::{Cell, FIRST_ENTRIES, LogCell},
            table::{New, Saved, Table},
        },
    },
};

/// Counters that give way to one request, at most: a bound on the time that a lock is held.
const MOST_EVICTED: usize = 64;

/// How many counters may be in a shard, how much all shards may take, and what happens beyond.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) keys: usize,
    pub(super) budget: Budget,
    pub(super) when_full: WhenFull,
}

/// What a request needs beyond what is there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub(super) keys: usize,
    pub(super) bytes: usize,
}

impl Need {
    /// What the charge's counter needs when it is not there.
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        let bytes = if is_log(charge) {
            Table::<LogCell>::SLOT + FIRST_ENTRIES
        } else {
            Table::<State>::SLOT
        };
        Self { keys: 1, bytes }
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            keys: self.keys + other.keys,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Counters of constant size stand in one table, logs in another: a log is large and rare, and
/// must not make the others larger.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) counters: Table<State>,
    pub(super) logs: Table<LogCell>,
    loan: Loan,
    evicted: u64,
    roomless: u64,
}

/// Where a counter stood when it was looked for, if it was; others may have moved it since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place(Option<usize>);

impl Place {
    /// Whether it was there.
    pub(super) const fn is_known(self) -> bool {
        self.0.is_some()
    }
}

fn is_log(charge: &Charge<'_>) -> bool {
    charge.limit.algorithm == Algorithm::SlidingLog
}

impl Shard {
    /// Where the charge's counter stands.
    pub(super) fn find(&self, charge: &Charge<'_>) -> Place {
        Place(if is_log(charge) {
            self.logs.find(charge.key)
        } else {
            self.counters.find(charge.key)
        })
    }

    /// What taking `cost` would say; takes nothing.
    pub(super) fn look(
        &mut self,
        charge: &Charge<'_>,
        place: Place,
        now: Timestamp,
        cost: u64,
    ) -> Outcome {
        if is_log(charge) {
            let position = self.logs.find_again(charge.key, place.0);
            self.logs.look(position, charge, now, cost)
        } else {
            let position = self.counters.find_again(charge.key, place.0);
            self.counters.look(position, charge, now, cost)
        }
    }

    /// An outcome that was looked up but not taken: what is left is what is left without it.
    pub(super) fn as_if_untouched(
        &mut self,
        charge: &Charge<'_>,
        place: Place,
        now: Timestamp,
        looked: Outcome,
    ) -> Outcome {
        let untouched = self.look(charge, place, now, 0);
        Outcome {
            used_before: untouched.used_before,
            remaining: untouched.remaining,
            reset: untouched.reset,
            ..looked
        }
    }

    /// The outcome with [`Outcome::more`]. A limit that is all there has no more to tell.
    pub(super) fn with_more(
        &mut self,
        charge: &Charge<'_>,
        place: Place,
        now: Timestamp,
        outcome: Outcome,
    ) -> Outcome {
        let more = match outcome.remaining.checked_add(1) {
            Some(cost) => self.look(charge, place, now, cost).retry,
            None => Retry::Never,
        };
        let more = match more {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        };
        Outcome { more, ..outcome }
    }

    /// Takes the charge if it passes; with `count_denied` counts it even if it does not.
    #[inline]
    pub(super) fn take(
        &mut self,
        charge: &Charge<'_>,
        place: Place,
        now: Timestamp,
        count_denied: bool,
        room: &Room,
    ) -> Outcome {
        if is_log(charge) {
            self.take_as::<LogCell>(charge, place, now, count_denied, room)
        } else {
            self.take_as::<State>(charge, place, now, count_denied, room)
        }
    }

    #[inline]
    fn take_as<C: Cell>(
        &mut self,
        charge: &Charge<'_>,
        place: Place,
        now: Timestamp,
        count_denied: bool,
        room: &Room,
    ) -> Outcome {
        let table = C::table(self);
        let mut position = table.find_again(charge.key, place.0);
        if charge.cost == 0 {
            return table.look(position, charge, now, 0);
        }
        if C::GROWS {
            self.let_grow::<C>(charge, position, now, room);
            position = C::table(self).find_again(charge.key, position);
        }
        match position {
            Some(position) => C::table(self).take(position, charge, now, count_denied),
            None => self.take_new::<C>(charge, now, count_denied, room),
        }
    }

    /// Takes the charge from a counter that is not here yet.
    #[inline(never)]
    fn take_new<C: Cell>(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
        room: &Room,
    ) -> Outcome {
        let new = match New::<C>::take(charge, now, count_denied) {
            Ok(new) => new,
            Err(outcome) => return outcome,
        };
        let need = Need {
            keys: 1,
            bytes: new.bytes(),
        };
        if self.has_room(need, now, room) || self.evict_for(need, charge.key, now, room) {
            return C::table(self).insert(new);
        }
        self.count_roomless();
        match room.when_full {
            WhenFull::Deny => without_counter(new.outcome),
            WhenFull::Allow | WhenFull::EvictSoonest => new.outcome,
        }
    }

    /// Lets the charge's counter take up more memory, if it needs more and that can be had. If not,
    /// it counts on more coarsely: see [`Cell::grow`].
    fn let_grow<C: Cell>(
        &mut self,
        charge: &Charge<'_>,
        position: Option<usize>,
        now: Timestamp,
        room: &Room,
    ) {
        let bytes = C::table(self).growth(position, charge, now);
        if bytes == 0 {
            return;
        }
        let need = Need { keys: 0, bytes };
        if self.fits(need, For::Old, room) || self.evict_for(need, charge.key, now, room) {
            C::table(self).grow(charge);
        }
    }

    /// Gives the charge back, as far as it was taken; always passes.
    pub(super) fn give_back(&mut self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        if is_log(charge) {
            self.logs.give_back(charge, now)
        } else {
            self.counters.give_back(charge, now)
        }
    }

    /// Whether more counters fit without pushing a live one out.
    pub(super) fn has_room(&mut self, need: Need, now: Timestamp, room: &Room) -> bool {
        if self.fits(need, For::New, room) {
            return true;
        }
        if room.when_full == WhenFull::EvictSoonest {
            return false;
        }
        self.make_room::<State>(need, now, room);
        self.make_room::<LogCell>(need, now, room);
        self.fits(need, For::New, room)
    }

    fn fits(&mut self, need: Need, what: For, room: &Room) -> bool {
        let bytes = self.needed() + need.bytes;
        self.len() + need.keys <= room.keys && room.budget.fits(&mut self.loan, bytes, what)
    }

    /// Lets counters give way until there is room, if that is the configured answer; never the one
    /// that needs it.
    fn evict_for(&mut self, need: Need, key: CounterKey, now: Timestamp, room: &Room) -> bool {
        if room.when_full != WhenFull::EvictSoonest {
            return false;
        }
        let what = if need.keys == 0 { For::Old } else { For::New };
        for _ in 0..MOST_EVICTED {
            if !self.evict(key, now) {
                return false;
            }
            if self.fits(need, what, room) {
                return true;
            }
        }
        false
    }

    /// Lets one counter give way; false when there is none.
    fn evict(&mut self, but: CounterKey, now: Timestamp) -> bool {
        let (counter, log) = (self.counters.least(but, now), self.logs.least(but, now));
        let weight = match (counter, log) {
            (Some(counter), log) if log.is_none_or(|log| counter.0 <= log.0) => {
                self.counters.forget(counter.1);
                counter.0
            }
            (_, Some(log)) => {
                self.logs.forget(log.1);
                log.0
            }
            (_, None) => return false,
        };
        let was_live = !weight.1.is_zero();
        self.evicted += u64::from(was_live);
        true
    }

    /// Forgets a counter; true when there was one.
    pub(super) fn reset(&mut self, key: CounterKey) -> bool {
        let counter = self.counters.reset(key);
        self.logs.reset(key) || counter
    }

    /// Frees what is as good as fresh until there is room.
    fn make_room<C: Cell>(&mut self, need: Need, now: Timestamp, room: &Room) {
        let mut walk = C::table(self).begin_sweep(now);
        while let Some(from) = walk {
            if self.fits(need, For::New, room) {
                return C::table(self).leave_sweep(from);
            }
            walk = C::table(self).sweep(from, now);
        }
    }

    /// Gives memory back that it does not need any more.
    pub(super) fn give_back_memory(&mut self, room: &Room) {
        let needed = self.needed();
        room.budget.give_back(&mut self.loan, needed);
    }

    /// What its counters take, in bytes, as the bound on memory counts it.
    pub(super) fn needed(&self) -> usize {
        self.counters.needed() + self.logs.needed()
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len() + self.logs.len()
    }

    /// A charge is answered without a counter because there is no room for one.
    pub(super) fn count_roomless(&mut self) {
        self.roomless += 1;
    }

    /// Live counters that gave way to others.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Charges answered without a counter because there was no room for one.
    pub(super) fn roomless(&self) -> u64 {
        self.roomless
    }

    /// What its tables and the entries of its logs take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.counters.bytes() + self.logs.bytes()
    }

    /// Puts a counter of a life before in its place; false when there is no room for it.
    pub(super) fn restore<C: Cell>(
        &mut self,
        saved: Saved<C>,
        now: Timestamp,
        room: &Room,
    ) -> bool {
        let need = Need {
            keys: 1,
            bytes: saved.bytes(),
        };
        let nobody = CounterKey::from_bits(0);
        let fits = self.has_room(need, now, room) || self.evict_for(need, nobody, now, room);
        if fits {
            C::table(self).restore(saved);
        }
        fits
    }
}

/// The refusal when no counter can be kept. When there will be room nobody knows.
pub(super) fn without_counter(outcome: Outcome) -> Outcome {
    Outcome {
        allowed: false,
        remaining: 0,
        retry: Retry::After(Span::from_secs(1)),
        ..outcome
    }
}
