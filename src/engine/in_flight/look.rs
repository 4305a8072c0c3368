//! How a limit on work in flight stands, as an outcome like that of a rate limit.

use std::sync::Arc;

use super::Flight;
use crate::{
    algorithm::{Outcome, Retry},
    engine::permits::{Permits, Refused},
    model::{
        lease::{Cause, Decision},
        time::Span,
    },
    rules::concurrency::ConcurrencyRule,
    store::{
        lease::{Answer, ItemState, KeyView},
        leases::Keeper,
    },
};

/// How a limit on work in flight stands.
pub(in crate::engine) struct Looked {
    /// What the permits are told, or would be.
    pub(in crate::engine) outcome: Outcome,
    /// Permits that there are.
    pub(in crate::engine) limit: u64,
    /// Why they are refused, or would be.
    pub(in crate::engine) refused: Option<Refused>,
    /// None after a decision, and when nobody ever asked for one.
    pub(in crate::engine) estimates: Option<KeyView>,
}

impl Flight<'_> {
    /// Would so many permits be granted? None always are.
    pub(super) async fn look(
        &self,
        rule: &Arc<ConcurrencyRule>,
        permits: &Permits,
        wanted: u64,
    ) -> Looked {
        let now = self.now.steady;
        let (view, closed) = match self.keeper {
            Keeper::Book(book) => book.with(self.now, |book| {
                (book.peek(permits.key, now), book.closed_for(rule, now))
            }),
            // Its leases outlive a start: it is never closed.
            Keeper::Fleet(fleet) => match fleet.peek(permits.key, rule).await {
                Ok(view) => (view, Span::ZERO),
                Err(error) => {
                    self.without_store(error);
                    (None, Span::ZERO)
                }
            },
        };
        let (limit, in_flight, remaining, mean_hold) = match &view {
            Some(view) => (view.limit, view.in_flight, view.remaining, view.mean_hold),
            None => (rule.limit.most(), 0, rule.limit.most(), 0.0),
        };
        let remaining = if closed.is_zero() { remaining } else { 0 };
        let short = wanted.saturating_sub(remaining);
        // Little's law: one permit comes back every W ÷ C.
        let each = mean_hold / f64::from(u32::try_from(limit.max(1)).unwrap_or(u32::MAX));
        let retry = if wanted > limit {
            Retry::Never
        } else {
            let short = f64::from(u32::try_from(short).unwrap_or(u32::MAX));
            Retry::After(Span::from_secs_f64(each * short).max(closed))
        };
        let refused = if rule.shared {
            Refused::Shared
        } else {
            Refused::Own
        };
        Looked {
            outcome: outcome(short == 0, in_flight, remaining, retry),
            limit,
            refused: (short > 0).then_some(refused),
            estimates: view,
        }
    }
}

/// The answer of the book as a limit's outcome. Of items that refused together each has its own
/// hint; the one that decides has the one that was booked.
pub(super) fn outcome_of(answer: &Answer, state: &ItemState, allowed: bool) -> Looked {
    let used_before = state.in_flight.saturating_sub(state.granted);
    let longest = answer.items.iter().map(|item| item.retry_after).max();
    let decides = answer.cause != Some(Cause::Rate) && longest == Some(state.retry_after);
    let wait = if decides {
        answer.retry_after
    } else {
        state.retry_after
    };
    let retry = match (allowed, answer.decision) {
        (true, _) => Retry::After(Span::ZERO),
        (false, Decision::Never) => Retry::Never,
        (false, _) => Retry::After(wait.unwrap_or(Span::from_secs(1))),
    };
    Looked {
        outcome: outcome(allowed, used_before, state.remaining, retry),
        limit: state.limit,
        refused: Refused::of(state).filter(|_| !allowed),
        estimates: None,
    }
}

fn outcome(allowed: bool, used_before: u64, remaining: u64, retry: Retry) -> Outcome {
    let reset = match retry {
        Retry::After(wait) => wait,
        Retry::Never => Span::ZERO,
    };
    Outcome {
        allowed,
        used_before,
        remaining,
        reset,
        retry,
        delay: Span::ZERO,
        more: None,
    }
}
