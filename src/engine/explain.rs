//! What a request would do and why: a [look](crate::engine::peek) with everything that led to it.

use crate::{
    engine::{
        DecideError, Engine, Installed,
        peek::Peeked,
        permits::Action,
        standing::Standing,
        verdict::{Code, Status, Verdict},
    },
    model::{key::CounterKey, request::Request},
    rules::{Stacking, tried::Trace},
};

/// A request, explained. Nothing was counted for it.
#[derive(Debug)]
pub struct Explained<'r> {
    /// The answer that it would get, and how its limits stand before.
    pub peeked: Peeked<'r>,
    /// By descriptor: its way through the rules; none in a domain that is not there.
    pub traces: Vec<Trace<'r>>,
    /// By descriptor: one per limit that it touches, in the order of
    /// [`Status::limits`](crate::engine::verdict::Status::limits).
    pub effects: Vec<Vec<Effect>>,
}

/// What a request would do to one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// What the descriptor asks for.
    pub cost: u64,
    /// The limit is charged with it: it passes, or the limit counts what it refuses.
    pub charged: bool,
    /// Used after the whole request.
    pub used: u64,
    /// Left after the whole request.
    pub remaining: u64,
}

/// A limit before the request.
struct Before {
    key: CounterKey,
    effect: Effect,
}

impl Engine {
    /// Explains a request. Takes nothing and gives nothing back.
    ///
    /// # Errors
    /// As [`Engine::peek`].
    pub async fn explain<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
    ) -> Result<Explained<'r>, DecideError> {
        let peeked = self.peek(installed, request).await?;
        let traces = peeked.verdict.domain.map_or_else(Vec::new, |domain| {
            let descriptors = request.descriptors.iter();
            descriptors
                .map(|descriptor| domain.trace(request.entries(descriptor)))
                .collect()
        });
        let effects = effects(&peeked.verdict);
        Ok(Explained {
            peeked,
            traces,
            effects,
        })
    }
}

/// What is left of a limit falls by exactly what it is charged with, whatever algorithm counts.
fn effects(verdict: &Verdict<'_>) -> Vec<Vec<Effect>> {
    let stacking = verdict.domain.map(|domain| domain.stacking);
    let mut before: Vec<Vec<Before>> = verdict
        .statuses()
        .map(|status| before(&status, stacking.unwrap_or_default(), verdict.code))
        .collect();
    let charges: Vec<(CounterKey, u64)> = before
        .iter()
        .flatten()
        .filter(|before| before.effect.charged)
        .map(|before| (before.key, before.effect.cost))
        .collect();
    for before in before.iter_mut().flatten() {
        let same = charges.iter().filter(|(key, _)| *key == before.key);
        let sum = same.fold(0_u64, |sum, (_, cost)| sum.saturating_add(*cost));
        let effect = &mut before.effect;
        effect.used = effect.used.saturating_add(sum);
        effect.remaining = effect.remaining.saturating_sub(sum);
    }
    let of_descriptor = |list: Vec<Before>| list.into_iter().map(|before| before.effect).collect();
    before.into_iter().map(of_descriptor).collect()
}

/// The limits of one descriptor, each with whether it will be charged.
fn before(status: &Status<'_, '_>, stacking: Stacking, code: Code) -> Vec<Before> {
    let Some(touched) = status.touched else {
        return Vec::new();
    };
    let alone = stacking == Stacking::Independent;
    let all_fall = !alone && code == Code::OverLimit;
    let limits = status.limits();
    let one = |(index, standing): (usize, &Standing<'_>)| {
        let limit = touched.counters().nth(index).map(|counter| counter.limit);
        let cost = match (
            limit,
            touched.permits.as_ref().map(|permits| permits.action),
        ) {
            (Some(_), _) => touched.cost,
            (None, Some(Action::Take(count))) => count,
            (None, _) => 0,
        };
        let counts_refused = alone && limit.is_some_and(|limit| limit.count_denied);
        let passes = standing.refused.is_none() || counts_refused;
        Before {
            key: standing.key,
            effect: Effect {
                cost,
                charged: cost > 0 && passes && !all_fall,
                used: standing.used,
                remaining: standing.remaining,
            },
        }
    };
    limits.iter().enumerate().map(one).collect()
}
