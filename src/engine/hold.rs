//! The shaper under `ShouldRateLimit`: an admitted request is held until its slot.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::sleep;

use crate::{
    engine::Engine,
    model::{
        request::Request,
        time::{Clock, Span},
    },
    rules::{Domain, Stacking},
    store::{
        Charge, Charges, Outcomes,
        leases::{self, RateUnits},
        memory::MemoryStore,
    },
};

/// Whether a request touches a rule whose requests may have to wait.
pub(super) fn may_wait(domain: &Domain, request: &Request<'_>) -> bool {
    request.descriptors.iter().any(|descriptor| {
        let matched = domain.find(request.entries(descriptor));
        descriptor.limit.is_none() && matched.is_some_and(|matched| matched.rule.may_wait())
    })
}

/// Half of what the caller waits: the answer has to reach it.
pub(super) fn patience(timeout: Option<Span>) -> Span {
    timeout.map_or(UNHURRIED, |timeout| {
        Span::from_nanos(timeout.as_nanos() / 2)
    })
}

/// How long a caller that names no timeout is held at the most.
const UNHURRIED: Span = Span::from_secs(30);

impl Engine {
    /// Holds an admitted request until the latest of its slots.
    ///
    /// # Cancel safety
    /// Dropped before that, the slots are given back.
    pub(super) async fn hold(&self, charges: &Charges<'_>, outcomes: &Outcomes) {
        let held = charges
            .list
            .iter()
            .zip(outcomes)
            .filter(|(charge, outcome)| {
                outcome.allowed && !charge.refund && !outcome.delay.is_zero()
            });
        let slots: SmallVec<[(RateUnits, Span); 1]> = held
            .map(|(charge, outcome)| (owned(charge), outcome.delay))
            .collect();
        let Some(delay) = slots.iter().map(|(_, delay)| *delay).max() else {
            return;
        };
        let mut held = Held {
            counters: Arc::clone(self.store.memory()),
            clock: self.clock.clone(),
            units: slots.into_iter().map(|(units, _)| units).collect(),
        };
        sleep(delay.into()).await;
        held.units.clear();
    }
}

fn owned(charge: &Charge<'_>) -> RateUnits {
    RateUnits {
        key: charge.key,
        limit: charge.limit.clone(),
        cost: charge.cost,
        role: charge.role,
        shadow: charge.shadow,
        shared: false,
    }
}

/// Slots whose request is still waiting for them.
struct Held {
    counters: Arc<MemoryStore>,
    clock: Clock,
    units: SmallVec<[RateUnits; 1]>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.units.is_empty() {
            let mut charges = leases::charges(&self.units);
            charges.stacking = Stacking::Independent;
            charges
                .list
                .iter_mut()
                .for_each(|charge| charge.refund = true);
            self.counters.decide(&charges, self.clock.now().wall);
        }
    }
}
