//! Tenants of one key: what each has, what each wants, and who is below its fair share.

use std::collections::HashMap;

use crate::{
    algorithm::concurrency::{real::real, share::max_min_level},
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
};

/// Memory of what a tenant asks for.
const DEMAND_MEMORY: Span = Span::from_secs(5);
/// A demand is never taken from less time than this: one request says little about a rate.
const LEAST_TIME: Span = Span::from_millis(500);
/// The level of max-min fairness is computed anew after this long.
const LEVEL_AGE: Span = Span::from_millis(100);
/// Most tenants of a key that are told apart; whoever comes later counts as above its share.
const MOST_TENANTS: usize = 4_096;
/// Permits per second below which a tenant without permits is forgotten.
const FORGETTABLE: f64 = 0.01;

/// Tenants by their hashed names.
#[derive(Debug)]
pub(super) struct Tenants {
    by_name: HashMap<CounterKey, Tenant>,
    level: f64,
    level_at: Timestamp,
}

#[derive(Debug)]
struct Tenant {
    in_flight: u64,
    waiting: u64,
    /// Permits asked for, and seconds in which they were; both decay with [`DEMAND_MEMORY`].
    asked: f64,
    time: f64,
    at: Timestamp,
}

impl Tenant {
    const fn new(now: Timestamp) -> Self {
        Self {
            in_flight: 0,
            waiting: 0,
            asked: 0.0,
            time: 0.0,
            at: now,
        }
    }

    fn arrive(&mut self, permits: u64, now: Timestamp) {
        (self.asked, self.time) = self.decayed(now);
        self.asked += real(permits);
        self.at = now;
    }

    fn decayed(&self, now: Timestamp) -> (f64, f64) {
        let memory = DEMAND_MEMORY.as_secs_f64();
        let gone = -(-now.since(self.at).as_secs_f64() / memory).exp_m1();
        let kept = 1.0 - gone;
        (self.asked * kept, self.time * kept + memory * gone)
    }

    /// Permits per second.
    fn demand(&self, now: Timestamp) -> f64 {
        let (asked, time) = self.decayed(now);
        asked / time.max(LEAST_TIME.as_secs_f64())
    }
}

impl Tenants {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            by_name: HashMap::new(),
            level: f64::INFINITY,
            level_at: now,
        }
    }

    /// A tenant asks for permits, whether it gets them or not.
    pub(super) fn arrive(&mut self, name: CounterKey, permits: u64, now: Timestamp) {
        if self.by_name.len() >= MOST_TENANTS && !self.by_name.contains_key(&name) {
            return;
        }
        let tenant = self.by_name.entry(name);
        tenant
            .or_insert_with(|| Tenant::new(now))
            .arrive(permits, now);
    }

    /// Whether the tenant is above its fair share of `capacity` permits with mean hold `hold`.
    ///
    /// It is not if what it wants (permits per second × hold) is within the max-min level. Nor is
    /// a greedy tenant while it has and waits for at most half the level: others that are more
    /// greedy still cannot starve it.
    pub(super) fn is_above_share(
        &mut self,
        name: CounterKey,
        permits: u64,
        capacity: u64,
        hold: f64,
        now: Timestamp,
    ) -> bool {
        if now.since(self.level_at) >= LEVEL_AGE || self.level_at == now {
            self.find_level(real(capacity), hold, now);
        }
        let Some(tenant) = self.by_name.get(&name) else {
            return true;
        };
        let would_have = tenant.in_flight + tenant.waiting + permits;
        tenant.demand(now) * hold > self.level && real(would_have) > self.level / 2.0
    }

    fn find_level(&mut self, capacity: f64, hold: f64, now: Timestamp) {
        self.by_name.retain(|_, tenant| {
            tenant.in_flight + tenant.waiting > 0 || tenant.demand(now) > FORGETTABLE
        });
        let demands = self.by_name.values().map(|tenant| tenant.demand(now));
        let mut wants: Vec<f64> = demands.map(|demand| demand * hold).collect();
        self.level = max_min_level(capacity, &mut wants);
        self.level_at = now;
    }

    pub(super) fn take(&mut self, name: CounterKey, permits: u64) {
        self.change(name, |tenant| tenant.in_flight += permits);
    }

    pub(super) fn give_back(&mut self, name: CounterKey, permits: u64) {
        self.change(name, |tenant| {
            tenant.in_flight = tenant.in_flight.saturating_sub(permits);
        });
    }

    pub(super) fn wait(&mut self, name: CounterKey, permits: u64) {
        self.change(name, |tenant| tenant.waiting += permits);
    }

    pub(super) fn stop_waiting(&mut self, name: CounterKey, permits: u64) {
        self.change(name, |tenant| {
            tenant.waiting = tenant.waiting.saturating_sub(permits);
        });
    }

    fn change(&mut self, name: CounterKey, change: impl FnOnce(&mut Tenant)) {
        if let Some(tenant) = self.by_name.get_mut(&name) {
            change(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOUD: CounterKey = CounterKey::from_bits(0);

    /// Ten seconds of demand: one tenant at `loud` per second, `others` at two per second each.
    fn demand(loud: u64, others: u32) -> (Tenants, Timestamp) {
        let mut tenants = Tenants::new(Timestamp::ZERO);
        let mut now = Timestamp::ZERO;
        for tenth in 0..100 {
            now = Timestamp::ZERO + Span::from_millis(100 * tenth);
            tenants.arrive(LOUD, loud / 10, now);
            if tenth % 5 == 0 {
                for other in 1..=others {
                    tenants.arrive(CounterKey::from_bits(other.into()), 1, now);
                }
            }
        }
        (tenants, now)
    }

    #[test]
    fn the_loud_one_is_above_its_share_and_the_small_ones_are_not() {
        let (mut tenants, now) = demand(300, 30);
        tenants.take(LOUD, 15);
        assert!(tenants.is_above_share(LOUD, 1, 30, 0.25, now));
        let small = CounterKey::from_bits(7);
        tenants.take(small, 3);
        assert!(!tenants.is_above_share(small, 1, 30, 0.25, now));
        // With room for all nobody is.
        assert!(!tenants.is_above_share(LOUD, 1, 300, 0.25, now + Span::from_millis(200)));
    }

    #[test]
    fn half_of_the_level_is_everybodys() {
        let (mut tenants, now) = demand(300, 30);
        tenants.take(LOUD, 5);
        assert!(!tenants.is_above_share(LOUD, 1, 30, 0.25, now));
        tenants.wait(LOUD, 9);
        assert!(tenants.is_above_share(LOUD, 1, 30, 0.25, now));
        tenants.stop_waiting(LOUD, 9);
        tenants.give_back(LOUD, 5);
        assert!(!tenants.is_above_share(LOUD, 1, 30, 0.25, now));
    }

    #[test]
    fn idle_tenants_are_forgotten() {
        let (mut tenants, now) = demand(300, 30);
        let later = now + Span::from_secs(120);
        assert!(tenants.is_above_share(LOUD, 1, 30, 0.25, later));
        assert!(tenants.by_name.is_empty());
    }
}
