//! What is answered when the shared store is away.

use std::{num::NonZeroU32, sync::Arc};

use smallvec::SmallVec;

use crate::{
    algorithm::{Outcome, Retry},
    model::{
        limit::{Algorithm, Quota},
        time::{Now, Span},
    },
    rules::{Domain, OnStoreFailure, limit::Limit},
    store::{
        charges::{Charge, Charges, Outcomes},
        decided::{Decided, Degraded},
        memory::MemoryStore,
        redis::{RedisStore, StoreError},
    },
};

/// When a refused caller should come back if the store is away and the domain says `deny`: the
/// store is probed several times a second.
pub(in crate::store) const RETRY_WHEN_DENIED: Span = Span::from_secs(1);

/// Counters of a fleet, and counters of this process that stand in for them.
#[derive(Debug)]
pub struct SharedStore {
    redis: RedisStore,
    fallback: Fallback,
}

impl SharedStore {
    /// Puts a shared store and its stand-in together.
    pub fn new(redis: RedisStore, fallback: Fallback) -> Self {
        Self { redis, fallback }
    }

    /// Decides all charges of one request to `domain`: by the shared store, waited for at most half
    /// of the caller's `timeout`, else as the domain says.
    pub async fn decide(
        &self,
        domain: &Domain,
        charges: &Charges<'_>,
        now: Now,
        timeout: Option<Span>,
    ) -> Decided {
        if let Some(decided) = self.redis.at_once(charges, self.redis.now()) {
            return decided;
        }
        let deadline = timeout.map_or(Span::MAX, Span::half);
        match self.redis.ask(&domain.name, charges, deadline).await {
            Ok(outcomes) => outcomes.into(),
            Err(error) => degraded(domain, error, |answer| {
                self.fallback.decide(answer, charges, now)
            }),
        }
    }

    /// What [`SharedStore::decide`] would say if all charges were asked for together; takes nothing.
    pub async fn look(&self, domain: &Domain, charges: &Charges<'_>, now: Now) -> Decided {
        match self.redis.look(&domain.name, charges, Span::MAX).await {
            Ok(outcomes) => outcomes.into(),
            Err(error) => degraded(domain, error, |answer| {
                self.fallback.look(answer, charges, now)
            }),
        }
    }

    /// Which part of each limit this process has when it is on its own.
    pub(in crate::store) fn replicas(&self) -> NonZeroU32 {
        self.fallback.replicas
    }

    /// The shared counters.
    pub fn redis(&self) -> &RedisStore {
        &self.redis
    }

    /// The counters of this process.
    pub fn memory(&self) -> &Arc<MemoryStore> {
        &self.fallback.memory
    }
}

fn degraded(
    domain: &Domain,
    error: StoreError,
    decide: impl FnOnce(OnStoreFailure) -> Outcomes,
) -> Decided {
    let answer = domain.on_store_failure;
    Decided {
        outcomes: decide(answer),
        degraded: Some(Degraded { answer, error }),
        remembered: false,
    }
}

/// Decides without the shared store.
#[derive(Debug)]
pub struct Fallback {
    memory: Arc<MemoryStore>,
    replicas: NonZeroU32,
}

impl Fallback {
    /// `memory` counts for domains that say `local`; of each limit this process has the
    /// `replicas`-th part.
    pub fn new(memory: MemoryStore, replicas: NonZeroU32) -> Self {
        Self {
            memory: Arc::new(memory),
            replicas,
        }
    }

    /// Decides all charges of one request.
    pub fn decide(&self, how: OnStoreFailure, charges: &Charges<'_>, now: Now) -> Outcomes {
        self.answer(how, charges, |charges| {
            self.memory.decide(charges, now.wall)
        })
    }

    /// What [`Fallback::decide`] would say if all charges were asked for together.
    pub fn look(&self, how: OnStoreFailure, charges: &Charges<'_>, now: Now) -> Outcomes {
        self.answer(how, charges, |charges| self.memory.look(charges, now.wall))
    }

    fn answer(
        &self,
        how: OnStoreFailure,
        charges: &Charges<'_>,
        locally: impl FnOnce(&Charges<'_>) -> Outcomes,
    ) -> Outcomes {
        let list = &charges.list;
        match how {
            OnStoreFailure::Allow => list.iter().map(allowed).collect(),
            OnStoreFailure::Deny => list.iter().map(denied).collect(),
            OnStoreFailure::Local => {
                let parts: SmallVec<[Limit; 8]> = list
                    .iter()
                    .map(|charge| share(charge.limit, self.replicas))
                    .collect();
                let mut parted = Charges {
                    list: SmallVec::new(),
                    terms: charges.terms,
                };
                for (charge, limit) in list.iter().zip(&parts) {
                    parted.list.push(Charge { limit, ..*charge });
                }
                locally(&parted)
            }
        }
    }
}

/// One replica's part of a limit: the same rate and window with a part of the units, but at least
/// one where the whole limit has one; so a limit of fewer units than replicas lets one through at
/// each of them.
pub(in crate::store) fn share(limit: &Limit, replicas: NonZeroU32) -> Limit {
    let parts = u64::from(replicas.get());
    let quota = limit.quota;
    let part = |units: u64| (units / parts).max(units.min(1));
    let split = match limit.algorithm {
        Algorithm::FixedWindow(_) | Algorithm::SlidingLog | Algorithm::SlidingWindow => {
            Quota::new(part(quota.units()), quota.period(), quota.burst())
        }
        // The rate is divided exactly: as many units in a longer period.
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
            let period = quota.period().saturating_mul(parts);
            Quota::new(quota.units(), period, part(quota.burst()))
        }
    };
    Limit {
        // Too long a period for a clock: then the rate's units are divided.
        quota: split
            .or_else(|_| {
                let burst = part(quota.burst());
                Quota::new(part(quota.units()), quota.period(), burst)
            })
            .unwrap_or(quota),
        // The states of this process are all written under parts.
        history: Arc::default(),
        ..limit.clone()
    }
}

pub(in crate::store) fn allowed(charge: &Charge<'_>) -> Outcome {
    Outcome {
        allowed: true,
        used_before: 0,
        remaining: charge.limit.quota.units(),
        reset: Span::ZERO,
        retry: Retry::After(Span::ZERO),
        delay: Span::ZERO,
        more: None,
    }
}

pub(in crate::store) fn denied(charge: &Charge<'_>) -> Outcome {
    Outcome {
        allowed: charge.refund,
        used_before: 0,
        remaining: 0,
        reset: Span::ZERO,
        retry: Retry::After(if charge.refund {
            Span::ZERO
        } else {
            RETRY_WHEN_DENIED
        }),
        delay: Span::ZERO,
        more: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{
            key::CounterKey,
            limit::Anchor,
            time::{ManualClock, Timestamp},
        },
        store::memory::MemoryOptions,
    };

    fn limit(algorithm: Algorithm, units: u64, burst: u64) -> Limit {
        Limit {
            count_denied: true,
            ..Limit::new(
                algorithm,
                Quota::new(units, Span::from_secs(60), burst).unwrap(),
            )
        }
    }

    fn admitted(replicas: u32, how: OnStoreFailure, limit: &Limit, calls: usize) -> usize {
        let replicas = NonZeroU32::new(replicas).unwrap();
        let fallback = Fallback::new(MemoryStore::new(MemoryOptions::default()), replicas);
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let charge = Charge::new(CounterKey::from_bits(1), limit, 1);
        let charges = Charges::from(charge);
        (0..calls)
            .filter(|_| fallback.decide(how, &charges, clock.now())[0].allowed)
            .count()
    }

    #[test]
    fn each_replica_has_its_part() {
        let window = limit(Algorithm::FixedWindow(Anchor::Clock), 50, 0);
        assert_eq!(admitted(3, OnStoreFailure::Local, &window, 100), 16);
        let bucket = limit(Algorithm::TokenBucket, 60, 20);
        assert_eq!(admitted(4, OnStoreFailure::Local, &bucket, 100), 5);
        let part = share(&bucket, NonZeroU32::new(4).unwrap());
        assert_eq!(part.quota.period(), Span::from_secs(240));
        assert_eq!(part.quota.units(), 60);
    }

    #[test]
    fn a_small_limit_is_not_closed_by_dividing_it() {
        let window = limit(Algorithm::FixedWindow(Anchor::Clock), 2, 0);
        assert_eq!(admitted(5, OnStoreFailure::Local, &window, 10), 1);
        let closed = limit(Algorithm::FixedWindow(Anchor::Clock), 0, 0);
        assert_eq!(admitted(5, OnStoreFailure::Local, &closed, 10), 0);
    }

    #[test]
    fn the_others_do_not_count() {
        let window = limit(Algorithm::FixedWindow(Anchor::Clock), 5, 0);
        assert_eq!(admitted(1, OnStoreFailure::Allow, &window, 10), 10);
        assert_eq!(admitted(1, OnStoreFailure::Deny, &window, 10), 0);
    }
}
