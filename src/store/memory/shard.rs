//! One shard: a table of counters behind one lock.

use hashbrown::HashTable;

use crate::{
    algorithm::{self, Outcome, Retry},
    model::{
        key::CounterKey,
        limit::State,
        time::{Span, Timestamp},
    },
    rules::limit::Limit,
    store::{Charge, memory::WhenFull},
};

/// How many counters may be here, and what happens beyond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) keys: usize,
    pub(super) when_full: WhenFull,
}

/// A table of counters.
#[derive(Debug, Default)]
pub(super) struct Shard {
    counters: HashTable<Slot>,
    pressed_out: u64,
}

/// One counter: 40 bytes, whatever its algorithm. Of the 128 bits of its key 96 are kept; the
/// lowest 32 choose the shard, so that keys of one shard share those that matter.
#[derive(Clone, Copy, Debug)]
struct Slot {
    key_high: u64,
    key_middle: u32,
    /// Version of the limit that the state was written under.
    version: u32,
    state: State,
}

impl Slot {
    fn new(key: CounterKey, version: u32, state: State) -> Self {
        let (key_high, key_middle) = split(key);
        Self {
            key_high,
            key_middle,
            version,
            state,
        }
    }

    fn is(&self, (high, middle): (u64, u32)) -> bool {
        self.key_high == high && self.key_middle == middle
    }

    /// The state as today's limit sees it.
    fn state_under(&self, limit: &Limit, now: Timestamp) -> State {
        if self.version == limit.version {
            return self.state;
        }
        let written = limit
            .history
            .iter()
            .find(|(version, ..)| *version == self.version);
        match written {
            Some((_, algorithm, quota)) => algorithm::carry(
                (algorithm, *quota),
                (&limit.algorithm, limit.quota),
                &self.state,
                now,
            ),
            None => self.state,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the parts of a 128-bit key"
)]
fn split(key: CounterKey) -> (u64, u32) {
    ((key.bits() >> 64) as u64, (key.bits() >> 32) as u32)
}

impl Shard {
    /// What taking `cost` would say; changes nothing.
    pub(super) fn look(&self, charge: &Charge<'_>, now: Timestamp, cost: u64) -> Outcome {
        let limit = charge.limit;
        let state = self.state(charge.key, limit, now);
        algorithm::look(&limit.algorithm, limit.quota, &state, now, cost)
    }

    /// An outcome that was looked up but not taken: what is left is what is left without it.
    pub(super) fn as_if_untouched(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        looked: Outcome,
    ) -> Outcome {
        let untouched = self.look(charge, now, 0);
        Outcome {
            remaining: untouched.remaining,
            reset: untouched.reset,
            ..looked
        }
    }

    /// Takes the charge if it passes; with `count_denied` counts it even if it does not.
    pub(super) fn take(
        &mut self,
        charge: &Charge<'_>,
        now: Timestamp,
        count_denied: bool,
        room: Room,
    ) -> Outcome {
        let Charge { limit, cost, .. } = *charge;
        let parts = split(charge.key);
        if let Some(slot) = self.counters.find_mut(parts.0, |slot| slot.is(parts)) {
            let mut state = slot.state_under(limit, now);
            let outcome = algorithm::take(
                &limit.algorithm,
                limit.quota,
                &mut state,
                now,
                cost,
                count_denied,
            );
            if cost > 0 {
                *slot = Slot {
                    version: limit.version,
                    state,
                    ..*slot
                };
            }
            return outcome;
        }
        let mut state = State::default();
        let outcome = algorithm::take(
            &limit.algorithm,
            limit.quota,
            &mut state,
            now,
            cost,
            count_denied,
        );
        if state == State::default() {
            return outcome;
        }
        if self.counters.len() >= room.keys && !self.make_room(now, room.when_full) {
            self.pressed_out += 1;
            return without_counter(outcome, room.when_full);
        }
        let slot = Slot::new(charge.key, limit.version, state);
        self.counters
            .insert_unique(parts.0, slot, |slot| slot.key_high);
        outcome
    }

    /// Gives the charge back, as far as it was taken; always passes.
    pub(super) fn give_back(&mut self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let limit = charge.limit;
        let parts = split(charge.key);
        if let Some(slot) = self.counters.find_mut(parts.0, |slot| slot.is(parts)) {
            let mut state = slot.state_under(limit, now);
            algorithm::give_back(&limit.algorithm, limit.quota, &mut state, now, charge.cost);
            *slot = Slot {
                version: limit.version,
                state,
                ..*slot
            };
        }
        Outcome {
            allowed: true,
            retry: Retry::After(Span::ZERO),
            ..self.look(charge, now, 0)
        }
    }

    /// Frees what is as good as fresh; returns how many are left.
    pub(super) fn sweep(&mut self, now: Timestamp) -> usize {
        self.counters.retain(|slot| slot.state.until > now);
        if self.counters.len() * 4 < self.counters.capacity() {
            self.counters
                .shrink_to(self.counters.len() * 2, |slot| slot.key_high);
        }
        self.counters.len()
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    pub(super) fn pressed_out(&self) -> u64 {
        self.pressed_out
    }

    fn state(&self, key: CounterKey, limit: &Limit, now: Timestamp) -> State {
        let parts = split(key);
        let slot = self.counters.find(parts.0, |slot| slot.is(parts));
        slot.map_or_else(State::default, |slot| slot.state_under(limit, now))
    }

    /// Makes room for one more counter, if the configured answer is to make it.
    fn make_room(&mut self, now: Timestamp, when_full: WhenFull) -> bool {
        let before = self.counters.len();
        self.counters.retain(|slot| slot.state.until > now);
        if self.counters.len() < before {
            return true;
        }
        if when_full != WhenFull::EvictSoonest {
            return false;
        }
        // A caller that was counted often must not be pushed out by a flood of callers seen once.
        let soonest = self
            .counters
            .iter()
            .min_by_key(|slot| (slot.state.until, slot.state.a));
        let Some(parts) = soonest.map(|slot| (slot.key_high, slot.key_middle)) else {
            return false;
        };
        if let Ok(entry) = self.counters.find_entry(parts.0, |slot| slot.is(parts)) {
            entry.remove();
            self.pressed_out += 1;
        }
        true
    }
}

/// The configured answer when no counter can be kept.
fn without_counter(outcome: Outcome, when_full: WhenFull) -> Outcome {
    match when_full {
        WhenFull::Deny => Outcome {
            allowed: false,
            remaining: 0,
            retry: Retry::After(Span::from_secs(1)),
            ..outcome
        },
        WhenFull::Allow | WhenFull::EvictSoonest => outcome,
    }
}
