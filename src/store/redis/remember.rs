//! Refusals that are remembered until the window ends, so that asking again costs no round trip.
//!
//! Only where nothing else could come out: a request with one limit, a fixed window whose end no
//! refusal moves. A refund through this process or a reset is heard of; one through another replica
//! is not, which is why remembering is off unless asked for.

use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use crate::{
    algorithm::{Outcome, Retry},
    model::{
        key::{ByKey, CounterKey},
        limit::{Algorithm, Anchor, Quota},
        time::{Span, Timestamp},
    },
    store::charges::{Charge, Charges},
};

/// Least time between two searches for what has ended, when the memory is full.
const PAUSE: Span = Span::from_secs(1);

/// Refusals by counter; a bounded number.
#[derive(Debug)]
pub(super) struct Remembered {
    most: usize,
    refusals: DashMap<CounterKey, Refusal, ByKey>,
    /// When it was last searched for what has ended, in nanoseconds of the store's clock.
    searched: AtomicU64,
}

#[derive(Clone, Debug)]
struct Refusal {
    algorithm: Algorithm,
    quota: Quota,
    cost: u64,
    /// What was answered at `since`.
    outcome: Outcome,
    since: Timestamp,
    until: Timestamp,
}

impl Remembered {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            refusals: DashMap::default(),
            searched: AtomicU64::new(0),
        }
    }

    /// What this request would be told, if that is known. `now` is the store's clock.
    pub(super) fn find(&self, charges: &Charges<'_>, now: Timestamp) -> Option<Outcome> {
        let charge = self.only(charges)?;
        let refusal = self.refusals.get(&charge.key)?;
        let limit = charge.limit;
        let same = refusal.quota == limit.quota && refusal.algorithm == limit.algorithm;
        if !same || charge.cost < refusal.cost || now >= refusal.until {
            return None;
        }
        let gone = refusal.since.until(now);
        let outcome = refusal.outcome;
        Some(Outcome {
            reset: outcome.reset.saturating_sub(gone),
            retry: match outcome.retry {
                Retry::After(wait) => Retry::After(wait.saturating_sub(gone)),
                Retry::Never => Retry::Never,
            },
            more: outcome.more.map(|wait| wait.saturating_sub(gone)),
            ..outcome
        })
    }

    /// Notes what the store said to this request.
    pub(super) fn note(&self, charges: &Charges<'_>, outcomes: &[Outcome], now: Timestamp) {
        if self.most == 0 {
            return;
        }
        for charge in charges.list.iter().filter(|charge| charge.refund) {
            self.refusals.remove(&charge.key);
        }
        let (Some(charge), [outcome]) = (self.only(charges), outcomes) else {
            return;
        };
        let Retry::After(wait) = outcome.retry else {
            return;
        };
        if outcome.allowed || !self.has_room(now) {
            return;
        }
        let counted = if charge.limit.count_denied {
            charge.cost
        } else {
            0
        };
        let refusal = Refusal {
            algorithm: charge.limit.algorithm.clone(),
            quota: charge.limit.quota,
            cost: charge.cost,
            outcome: Outcome {
                used_before: outcome.used_before.saturating_add(counted),
                ..*outcome
            },
            since: now,
            until: now + wait,
        };
        self.refusals.insert(charge.key, refusal);
    }

    /// A counter was reset.
    pub(super) fn forget(&self, key: CounterKey) {
        self.refusals.remove(&key);
    }

    fn only<'c>(&self, charges: &'c Charges<'_>) -> Option<&'c Charge<'c>> {
        let [charge] = charges.list.as_slice() else {
            return None;
        };
        let ends = matches!(
            charge.limit.algorithm,
            Algorithm::FixedWindow(Anchor::Clock | Anchor::FirstHit | Anchor::Calendar(_))
        );
        // A slice gives back what others hold of it any time.
        let ends = ends && charge.limit.slice.is_none();
        let fits = self.most > 0 && ends && charge.cost > 0 && !charge.refund;
        fits.then_some(charge)
    }

    fn has_room(&self, now: Timestamp) -> bool {
        if self.refusals.len() < self.most {
            return true;
        }
        let searched = Timestamp::from_nanos(self.searched.load(Ordering::Relaxed));
        if searched.until(now) < PAUSE {
            return false;
        }
        self.searched.store(now.as_nanos(), Ordering::Relaxed);
        self.refusals.retain(|_, refusal| refusal.until > now);
        self.refusals.len() < self.most
    }
}
