//! The shaper under `ShouldRateLimit`: an admitted request is held until its slot.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::{runtime::Handle, time::sleep};

use crate::{
    engine::Engine,
    model::{
        request::Request,
        time::{Clock, Span},
    },
    rules::{Domain, Stacking},
    store::{
        Charge, Charges, Decided, Store,
        leases::{self, RateUnits},
    },
};

/// Whether a request touches a rule whose requests may have to wait.
pub(super) fn may_wait(domain: &Domain, request: &Request<'_>) -> bool {
    domain.root.may_wait()
        && request.descriptors.iter().any(|descriptor| {
            let matched = domain.find(request.entries(descriptor));
            descriptor.limit.is_none() && matched.is_some_and(|matched| matched.rule.may_wait())
        })
}

/// Half of what the caller waits, in whole microseconds: the answer has to reach it.
pub(super) fn patience(timeout: Option<Span>) -> Span {
    timeout.map_or(UNHURRIED, |timeout| {
        Span::from_micros(timeout.as_nanos() / 2_000)
    })
}

/// How long a caller that names no timeout is held at the most.
const UNHURRIED: Span = Span::from_secs(30);

impl Engine {
    /// Holds an admitted request until the latest of its slots.
    ///
    /// # Cancel safety
    /// Dropped before that, the slots are given back. (A caller that goes away before a shared store
    /// has answered leaves its slot taken, as all that it was charged.)
    pub(super) async fn hold(&self, domain: &Domain, charges: &Charges<'_>, decided: &Decided) {
        let held = charges
            .list
            .iter()
            .zip(&decided.outcomes)
            .filter(|(charge, outcome)| {
                // A probe has no slot to wait for.
                let took = charge.cost > 0 && !charge.refund;
                outcome.allowed && took && !outcome.delay.is_zero()
            });
        let slots: SmallVec<[(RateUnits, Span); 1]> = held
            .map(|(charge, outcome)| (owned(charge), outcome.delay))
            .collect();
        let Some(delay) = slots.iter().map(|(_, delay)| *delay).max() else {
            return;
        };
        let mut held = Held {
            store: if decided.degraded.is_some() {
                Store::Memory(Arc::clone(self.store.memory()))
            } else {
                self.store.clone()
            },
            domain: Arc::clone(&domain.name),
            spread: domain.spread,
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
    /// That took the slots.
    store: Store,
    domain: Arc<str>,
    spread: bool,
    clock: Clock,
    units: SmallVec<[RateUnits; 1]>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.units.is_empty() {
            return;
        }
        let units = std::mem::take(&mut self.units);
        match &self.store {
            Store::Memory(counters) => {
                counters.decide(&refunds(&units), self.clock.now().wall);
            }
            Store::Shared(shared) => {
                let (shared, domain) = (Arc::clone(shared), Arc::clone(&self.domain));
                let spread = self.spread;
                // Nobody waits for it: should the store be away, the slots stay taken.
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(async move {
                        let mut refunds = refunds(&units);
                        refunds.terms.spread = spread;
                        let _ = shared.redis().decide(&domain, &refunds, Span::MAX).await;
                    });
                }
            }
        }
    }
}

fn refunds(units: &[RateUnits]) -> Charges<'_> {
    let mut charges = leases::charges(units);
    charges.terms.stacking = Stacking::Independent;
    charges
        .list
        .iter_mut()
        .for_each(|charge| charge.refund = true);
    charges
}
