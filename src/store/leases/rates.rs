//! Rate units that belong to a request for permits, and what the counters are asked for them.

use std::collections::HashMap;

use super::book::Waiting;
use crate::{
    algorithm::Retry,
    model::{
        key::CounterKey,
        time::{Now, Span},
    },
    rules::{Stacking, limit::Limit},
    store::{
        charges::{Charge, Charges, Outcomes, Role, Terms},
        lease::{RateShort, Rates, Ticket},
        memory::MemoryStore,
    },
};

/// Units of a rate limit that belong to a request for permits, owned so that they can wait.
#[derive(Clone, Debug)]
pub struct RateUnits {
    /// The counter.
    pub key: CounterKey,
    /// What it is held to.
    pub limit: Limit,
    /// How many.
    pub cost: u64,
    /// What a refusal means.
    pub role: Role,
    /// A refusal is only counted.
    pub shadow: bool,
    /// Several callers share the limit.
    pub shared: bool,
}

/// What rate units ask of the counters.
pub fn charges(rates: &[RateUnits]) -> Charges<'_> {
    let mut charges = Charges {
        terms: Terms {
            stacking: Stacking::AllOrNothing,
            patience: Some(Span::ZERO),
            ..Terms::default()
        },
        ..Charges::default()
    };
    for (descriptor, units) in rates.iter().enumerate() {
        charges.list.push(Charge {
            key: units.key,
            limit: &units.limit,
            cost: units.cost,
            refund: false,
            role: units.role,
            shadow: units.shadow,
            descriptor,
        });
    }
    charges
}

/// The refusing rate limit that takes longest to pass; none when they let the request through.
pub fn rate_short(rates: &[RateUnits], outcomes: &Outcomes) -> Option<RateShort> {
    if !charges(rates).are_refused(outcomes) {
        return None;
    }
    let refusing = rates
        .iter()
        .zip(outcomes)
        .filter(|(units, outcome)| !outcome.allowed && !units.shadow);
    let shorts = refusing.map(|(units, outcome)| RateShort {
        retry_after: match outcome.retry {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        },
        shared: units.shared,
    });
    // None is never, and never is longest.
    shorts.max_by_key(|short| short.retry_after.unwrap_or(Span::MAX))
}

/// Rate units of requests that wait, taken when the permits are there.
pub(super) struct WaitingRates<'a> {
    pub(super) counters: &'a MemoryStore,
    pub(super) waiting: &'a mut HashMap<Ticket, Waiting>,
    pub(super) now: Now,
}

impl Rates for WaitingRates<'_> {
    fn take(&mut self, ticket: Ticket) -> Option<RateShort> {
        let Waiting { rates, taken, .. } = self.waiting.get_mut(&ticket)?;
        *taken = self.counters.decide(&charges(rates), self.now.wall);
        rate_short(rates, taken)
    }
}
