//! A request for permits on its way through a shared store, and its answer.

use std::sync::Arc;

use rand::RngExt;
use smallvec::SmallVec;

use crate::{
    model::{
        lease::{Cause, Criticality, Decision, Holder, LeaseId},
        time::{Span, Timestamp},
    },
    rules::{OnStoreFailure, concurrency::ConcurrencyRule},
    store::{
        charges::Outcomes,
        lease::{Answer, Ask, AskError, Item, ItemState, Naming, Order, RateShort, SessionId},
        leases::{RateUnits, rate_short},
        redis::lease::{Granting, State, Word},
    },
};

/// A request for permits that owns what it is made of: it may wait.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) items: SmallVec<[Item; 2]>,
    pub(super) rates: SmallVec<[RateUnits; 2]>,
    pub(super) on_failure: OnStoreFailure,
    pub(super) order: Order,
    /// The rule of each item of the order, and its limit.
    pub(super) rules: SmallVec<[(Arc<ConcurrencyRule>, u64); 2]>,
    /// Place of the item that no waiting helps, and what it is told.
    pub(super) impossible: Option<(usize, Decision)>,
    pub(super) adopt: Vec<LeaseId>,
    pub(super) session: Option<SessionId>,
    pub(super) partial: bool,
    pub(super) dry_run: bool,
    /// How long it waits for permits.
    pub(super) wait: Span,
    /// Longest wait for the store.
    pub(super) patience: Span,
    pub(super) deadline: Option<Timestamp>,
    pub(super) expected_hold: Option<Span>,
    id: Vec<u8>,
    holder: Holder,
    criticality: Criticality,
    cohort: Option<u8>,
    ttl: Option<Span>,
}

impl Request {
    /// # Errors
    /// As for a request in one process.
    pub fn new(
        ask: &Ask<'_>,
        rates: SmallVec<[RateUnits; 2]>,
        on_failure: OnStoreFailure,
        patience: Span,
    ) -> Result<Self, AskError> {
        let order = Order::new(ask)?;
        let rules = order.items.iter().filter_map(|item| {
            let found = ask.items.iter().find(|asked| asked.key == item.key);
            let rule = found.and_then(|asked| asked.rule.clone())?;
            let limit = rule.limit.most();
            Some((rule, limit))
        });
        let rules: SmallVec<[(Arc<ConcurrencyRule>, u64); 2]> = rules.collect();
        let longest = rules.iter().map(|(rule, _)| rule.waiting.max_wait).max();
        let wait = ask.max_wait.or(longest).unwrap_or_default();
        Ok(Self {
            impossible: impossible(ask, &order),
            items: ask.items.iter().cloned().collect(),
            rates,
            on_failure,
            rules,
            adopt: ask.adopt.to_vec(),
            session: ask.session,
            partial: ask.partial,
            dry_run: ask.dry_run,
            wait: if ask.dry_run {
                Span::ZERO
            } else {
                wait.min(ask.wait_cap)
            },
            patience,
            deadline: ask.deadline,
            expected_hold: ask.expected_hold,
            id: ask.request_id.to_vec(),
            holder: ask.holder.clone(),
            criticality: ask.criticality,
            cohort: ask.cohort,
            ttl: ask.ttl,
            order,
        })
    }

    /// The request as a book takes it.
    pub(super) fn ask<'a>(&'a self, items: &'a [Item]) -> Ask<'a> {
        Ask {
            holder: self.holder.clone(),
            request_id: &self.id,
            naming: self.order.naming,
            ttl: self.ttl,
            expected_hold: self.expected_hold,
            max_wait: Some(self.wait),
            wait_cap: self.wait,
            deadline: self.deadline,
            criticality: self.criticality,
            cohort: self.cohort,
            adopt: &self.adopt,
            partial: self.partial,
            dry_run: self.dry_run,
            ..Ask::new(items)
        }
    }

    /// How many leases it may get.
    pub(super) fn leases(&self) -> usize {
        match self.order.naming {
            Naming::Issued => 1,
            Naming::Named(_) | Naming::Anonymous => self.order.items.len(),
        }
    }

    /// The answer that the store's decision means.
    pub(super) fn answer(
        &self,
        granting: &Granting,
        outcomes: &Outcomes,
        waiters: u64,
        now: Timestamp,
    ) -> Answer {
        let decision = match granting.word {
            Word::Granted => Decision::Granted,
            Word::Replayed => Decision::Replayed,
            Word::Conflict => Decision::Conflict,
            Word::Ended(by) => Decision::Ended(by),
            Word::Draining => Decision::Draining,
            Word::WouldGrant if rate_short(&self.rates, outcomes).is_some() => Decision::Refused,
            Word::WouldGrant => Decision::WouldGrant,
            Word::Impossible => self.impossible.map_or(Decision::Never, |(_, what)| what),
            Word::Refused | Word::Short | Word::Full | Word::Void | Word::UnknownWindow => {
                Decision::Refused
            }
        };
        let mut answer = Answer::new(decision);
        answer.leases.clone_from(&granting.leases);
        if matches!(decision, Decision::Conflict | Decision::Ended(_)) {
            return answer;
        }
        answer.fence = granting.fence;
        answer.expires_in = granting.expires_in;
        if !answer.leases.is_empty() && answer.is_go() {
            if self.session.is_some() && decision == Decision::Granted {
                answer.expires_in = self.order.ttl;
            }
            let part = 0.45 + 0.1 * rand::rng().random::<f64>();
            answer.renew_after = Span::from_secs_f64(answer.expires_in.as_secs_f64() * part);
        }
        for (index, place) in self.order.places.iter().enumerate() {
            let known = place.and_then(|place| {
                let (_, limit) = self.rules.get(place)?;
                Some((granting.states.get(place)?, *limit))
            });
            let Some((state, limit)) = known else {
                answer.items.push(ItemState::default());
                continue;
            };
            if state.short && decision == Decision::Refused {
                answer.limiting.push(index);
            }
            let refused = state.short && decision == Decision::Refused;
            let cause = refused.then(|| self.cause(place.unwrap_or_default(), limit, state));
            answer.items.push(ItemState {
                cause,
                retry_after: refused
                    .then(|| Span::from_secs_f64(state.wait).max(Span::from_millis(1))),
                shared: cause.is_some_and(|cause| self.is_shared(place.unwrap_or_default(), cause)),
                limit,
                in_flight: state.in_flight,
                remaining: limit.saturating_sub(state.in_flight),
                waiters,
                granted: state.granted,
                mean_hold: state.mean_hold,
                throughput: state.throughput,
                shadow_short: state.shadow_short,
            });
        }
        match decision {
            Decision::Draining => answer.shared = true,
            Decision::Refused => self.explain(granting, outcomes, now, &mut answer),
            _ => {
                answer.offender = self
                    .impossible
                    .filter(|_| granting.word == Word::Impossible)
                    .map(|(place, _)| place);
            }
        }
        answer
    }

    /// Why it was refused, and when to come back.
    fn explain(
        &self,
        granting: &Granting,
        outcomes: &Outcomes,
        now: Timestamp,
        answer: &mut Answer,
    ) {
        let rate = rate_short(&self.rates, outcomes);
        let mut longest = -1.0;
        let mut jitter = 0.0_f64;
        for (place, state) in granting.states.iter().enumerate().filter(|(_, s)| s.short) {
            let Some((rule, limit)) = self.rules.get(place) else {
                continue;
            };
            jitter = jitter.max(rule.hints.jitter);
            if state.wait > longest {
                longest = state.wait;
                let cause = self.cause(place, *limit, state);
                answer.cause = Some(cause);
                answer.shared = self.is_shared(place, cause);
            }
        }
        let mut told = granting.told;
        match rate {
            Some(RateShort {
                retry_after: Some(wait),
                shared,
            }) => {
                if wait.as_secs_f64() > longest {
                    answer.cause = Some(Cause::Rate);
                    answer.shared = shared;
                }
                told = Some(told.unwrap_or_default().max(wait));
            }
            Some(RateShort {
                retry_after: None,
                shared,
            }) => {
                answer.decision = Decision::Never;
                answer.cause = Some(Cause::Rate);
                answer.shared = shared;
                told = None;
            }
            None => {}
        }
        let jitter = 1.0 + jitter * rand::rng().random::<f64>();
        answer.retry_after = told
            .map(|told| Span::from_secs_f64(told.as_secs_f64() * jitter).max(Span::from_millis(1)));
        let late = |wait| self.deadline.is_some_and(|deadline| now + wait > deadline);
        answer.hopeless = answer.retry_after.is_some_and(late);
    }

    /// Whether a refusal is not the caller's own fault.
    fn is_shared(&self, place: usize, cause: Cause) -> bool {
        let rule = self.rules.get(place).map(|(rule, _)| rule);
        cause != Cause::Concurrency || rule.is_some_and(|rule| rule.shared)
    }

    fn cause(&self, place: usize, limit: u64, state: &State) -> Cause {
        let permits = self.order.items.get(place).map_or(1, |item| item.permits);
        if limit > 0 && state.in_flight.saturating_add(permits) <= limit {
            Cause::ShedCriticality
        } else {
            Cause::Concurrency
        }
    }
}

/// The first item that no waiting helps: without a rule where that refuses, or beyond its limit.
/// A limit of 0 is switched off for now, and a shadow limit only looks on.
fn impossible(ask: &Ask<'_>, order: &Order) -> Option<(usize, Decision)> {
    let what = |(place, item): (usize, &Item)| {
        let Some(rule) = &item.rule else {
            let refused = ask.refuse_unknown.then_some(Decision::UnknownKey);
            return refused.map(|decision| (place, decision));
        };
        let wanted = order.places.get(place).copied().flatten();
        let wanted = wanted.and_then(|place| order.items.get(place))?;
        let permits = if ask.partial {
            wanted.least
        } else {
            wanted.permits
        };
        let most = rule.limit.most();
        (most > 0 && permits > most && !rule.shadow).then_some((place, Decision::Never))
    };
    ask.items.iter().enumerate().find_map(what)
}
