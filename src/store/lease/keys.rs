//! Keys: made when somebody asks for one, moved to other versions of their rule, forgotten when they
//! are idle.

use std::sync::Arc;

use super::{LeaseBook, REMEMBER_ENDED, counter::Counter};
use crate::{
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
    rules::concurrency::{ConcurrencyRule, Marks},
};

/// A key that nobody asked for this long is forgotten, estimates and all.
const REMEMBER_KEY: Span = Span::from_secs(600);

/// Keys that are looked at for an idle one, when there is no room for a new key.
const KEYS_TRIED: usize = 64;

impl LeaseBook {
    /// The counter of a key under the present version of its rule. None when there is no room.
    pub(super) fn counter(
        &mut self,
        key: CounterKey,
        rule: &Arc<ConcurrencyRule>,
    ) -> Option<&mut Counter> {
        if !self.counters.contains_key(&key) {
            if self.counters.len() >= self.bounds.keys {
                self.forget_keys(KEYS_TRIED, Span::ZERO);
            }
            if self.counters.len() >= self.bounds.keys {
                return None;
            }
            let stats = self.stats_of(&rule.path);
            self.ring.push_back(key);
            let counter = Counter::new(Arc::clone(rule), stats, self.now);
            return Some(self.counters.entry(key).or_insert(counter));
        }
        if self
            .counters
            .get(&key)
            .is_some_and(|counter| !Arc::ptr_eq(&counter.rule, rule))
        {
            self.set_rule(key, rule, self.now);
        }
        let now = self.now;
        let counter = self.counters.get_mut(&key)?;
        counter.used = now;
        Some(counter)
    }

    /// How long the marks of a key last; the default for one that nobody asked for.
    pub(super) fn marks(&self, key: CounterKey) -> Marks {
        let counter = self.counters.get(&key);
        counter.map_or_else(Marks::default, |counter| counter.rule.marks)
    }

    /// Takes over other versions of the rules, found by their paths: leases and what is known
    /// about keys stay, whoever fits into a raised limit is served at the next turn. A rule that
    /// is gone keeps its leases until they end.
    pub fn reload(
        &mut self,
        rule_of: impl Fn(&str) -> Option<Arc<ConcurrencyRule>>,
        now: Timestamp,
    ) {
        self.advance(now);
        let keys: Vec<CounterKey> = self.counters.keys().copied().collect();
        for key in keys {
            let path = self
                .counters
                .get(&key)
                .map(|counter| Arc::clone(&counter.rule.path));
            if let Some(rule) = path.and_then(|path| rule_of(&path)) {
                self.set_rule(key, &rule, now);
            }
        }
        self.forget_limits(rule_of);
    }

    /// Takes over another version of the rule of one key.
    pub fn set_rule(&mut self, key: CounterKey, rule: &Arc<ConcurrencyRule>, now: Timestamp) {
        self.advance(now);
        let now = self.now;
        let Some(counter) = self.counters.get_mut(&key) else {
            return;
        };
        counter.touch(now);
        counter.follow(rule, now);
        self.limit_moved(key);
    }

    /// The limit of a key is another one: serve who waits, or take back what is too much.
    pub(super) fn limit_moved(&mut self, key: CounterKey) {
        let Some(counter) = self.counters.get(&key) else {
            return;
        };
        if !counter.queue.is_empty() {
            self.ready.push(key);
        }
        self.shrink(key);
    }

    /// Ends what is due and forgets, looking at `steps` keys. Correctness does not need it.
    pub fn sweep(&mut self, steps: usize, now: Timestamp) {
        self.advance(now);
        self.early.purge(self.now);
        self.refused.purge(self.now);
        self.bookings.purge(self.now);
        self.records.shrink_holders(self.bounds.holders);
        self.forget_keys(steps, REMEMBER_KEY);
    }

    /// Looks at `steps` keys: forgets ended leases whose time is over, and keys that are idle.
    fn forget_keys(&mut self, steps: usize, idle: Span) {
        for _ in 0..steps.min(self.ring.len()) {
            let Some(key) = self.ring.pop_front() else {
                return;
            };
            let Some(counter) = self.counters.get_mut(&key) else {
                continue;
            };
            let forgettable = counter.is_idle(self.now) && counter.used + idle <= self.now;
            while let Some((noticed, oldest)) = counter.ended.front().copied() {
                if !forgettable && noticed + REMEMBER_ENDED > self.now {
                    break;
                }
                counter.ended.pop_front();
                self.records.forget(oldest);
            }
            if forgettable {
                if let (Some(cost), Some(costs)) =
                    (counter.cost, self.costs.get_mut(&counter.stats))
                {
                    costs.forget(cost);
                }
                self.counters.remove(&key);
            } else {
                self.ring.push_back(key);
            }
        }
    }
}
