//! The items of a request for permits: which counters each touches, and the answer in their order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::request::{AcquireAnswer, AcquireItem};
use crate::{
    algorithm::Retry,
    engine::permits,
    model::{
        key::{CounterKey, KeyHasher},
        lease::{Cause, Decision},
    },
    rules::{answer::Scope, limit::Limit, lookup::Match},
    store::{
        Outcomes, Role,
        lease::{Answer, Item, ItemState},
        leases::{self, RateUnits},
    },
};

/// How the items of a request map to items of the book and to rate units.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// Place of the request's item in the book's answer.
    pub(super) place: SmallVec<[Option<usize>; 2]>,
    pub(super) names: SmallVec<[Arc<str>; 2]>,
    /// What the book is asked for.
    pub(super) book: SmallVec<[Item; 2]>,
    /// See [`Ask::unsaid`](crate::store::lease::Ask::unsaid).
    pub(super) unsaid: u32,
    pub(super) rates: SmallVec<[RateUnits; 2]>,
    /// Item of each of `rates`.
    pub(super) rate_of: SmallVec<[usize; 2]>,
    /// First item without a rule.
    pub(super) unknown: Option<usize>,
}

impl AcquireItem<'_> {
    /// The first counter that it touches, and how much it asks of it.
    pub(in crate::engine) fn asks(
        &self,
        matched: &Match<'_>,
        hasher: &KeyHasher,
    ) -> Option<(CounterKey, u64)> {
        let rule = matched.rule;
        if let (Some(limit), Some(hits)) = (rule.limits.first(), self.hits) {
            let hashed = matched.hashed(&self.entries, hasher);
            return Some((counter_of(limit, hashed), hits));
        }
        rule.concurrency.as_ref()?;
        Some((
            permits::key_of(matched, &self.entries, hasher),
            self.permits?,
        ))
    }
}

impl Items {
    pub(super) fn add(
        &mut self,
        index: usize,
        item: &AcquireItem<'_>,
        matched: &Match<'_>,
        hasher: &KeyHasher,
    ) {
        let rule = matched.rule;
        let mut name: Arc<str> = rule.path.as_str().into();
        let mut place = None;
        if let (Some(concurrency), Some(permits)) = (&rule.concurrency, item.permits) {
            place = Some(self.book.len());
            let bit = u32::try_from(self.book.len()).ok();
            let bit = bit.and_then(|place| 1_u32.checked_shl(place));
            self.unsaid |= bit.filter(|_| item.unsaid).unwrap_or(0);
            name = concurrency.name.clone().unwrap_or(name);
            self.book.push(Item {
                key: permits::key_of(matched, &item.entries, hasher),
                rule: Some(Arc::clone(concurrency)),
                permits,
                least: item.least,
            });
        }
        self.place.push(place);
        self.names.push(name);
        let Some(cost) = item.hits else { return };
        let hasher = matched.hashed(&item.entries, hasher);
        for limit in &rule.limits {
            self.rates.push(RateUnits {
                key: counter_of(limit, hasher),
                limit: limit.clone(),
                cost,
                role: Role::Enforced,
                shadow: rule.shadow_mode,
                shared: rule.scope == Scope::Shared,
            });
            self.rate_of.push(index);
        }
    }

    /// The book's answer with its items in the order of the request, and those of rate limits put
    /// between.
    pub(super) fn in_order(&self, mut answer: Answer, outcomes: &Outcomes) -> Answer {
        let of_book = std::mem::take(&mut answer.items);
        let from_book = |index: usize| self.place.iter().position(|place| *place == Some(index));
        answer.limiting = answer
            .limiting
            .iter()
            .filter_map(|index| from_book(*index))
            .collect();
        answer.offender = answer.offender.and_then(from_book);
        for (index, place) in self.place.iter().enumerate() {
            let state = place.and_then(|place| of_book.get(place).copied());
            let own = self
                .rate_of
                .iter()
                .zip(outcomes)
                .filter(|(item, _)| **item == index);
            let mut rates = own.map(|(_, outcome)| outcome);
            let left = rates.clone().map(|outcome| outcome.remaining).min();
            if rates.any(|outcome| !outcome.allowed) && !answer.limiting.contains(&index) {
                answer.limiting.push(index);
            }
            answer.items.push(state.unwrap_or_else(|| ItemState {
                remaining: left.unwrap_or_default(),
                ..ItemState::default()
            }));
        }
        answer
    }

    /// Items of rate limits only: there is nothing to hold, hence no lease.
    pub(super) fn of_rates(&self, outcomes: &Outcomes, dry_run: bool) -> Answer {
        let charges = leases::charges(&self.rates);
        let refused = charges.are_refused(outcomes);
        let never = outcomes
            .iter()
            .any(|o| !o.allowed && o.retry == Retry::Never);
        let decision = match (refused, never) {
            (true, true) => Decision::Never,
            (true, false) => Decision::Refused,
            (false, _) if dry_run => Decision::WouldGrant,
            (false, _) => Decision::Granted,
        };
        let mut answer = without_lease(decision, self, outcomes);
        if refused {
            answer.cause = Some(Cause::Rate);
            let short = leases::rate_short(&self.rates, outcomes);
            answer.retry_after = short.and_then(|short| short.retry_after);
            answer.shared = short.is_some_and(|short| short.shared);
        }
        answer
    }

    pub(super) fn answer(&self, answer: Answer) -> AcquireAnswer {
        AcquireAnswer {
            answer: Box::new(answer),
            names: self.names.clone(),
            degraded: false,
        }
    }
}

pub(super) fn without_lease(decision: Decision, items: &Items, outcomes: &Outcomes) -> Answer {
    items.in_order(Answer::new(decision), outcomes)
}

fn counter_of(limit: &Limit, hashed: KeyHasher) -> CounterKey {
    hashed.finish().sibling(limit.discriminator)
}
