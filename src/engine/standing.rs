//! How the limits of a request stand after its decision: what answers tell clients.

use std::{cmp::Reverse, sync::Arc};

use smallvec::SmallVec;

use crate::{
    algorithm::{Outcome, Retry},
    engine::{
        permits::{Permits, Refused},
        resolve::{Counter, Touched},
        verdict::{Status, Verdict, wait},
    },
    model::{
        key::CounterKey,
        limit::Algorithm,
        time::{Span, Timestamp},
    },
    rules::{
        answer::Scope,
        limit::{CostUnit, Limit},
        tree::Rule,
    },
};

/// Why a limit refused, for people and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Reason {
    /// Too much in too short a time.
    Rate,
    /// Too much at once.
    Concurrency,
    /// Too much of everything the caller does (a rule of global scope).
    Global,
    /// A resource that callers share has no more (a rule of shared scope): not the caller's fault.
    Shared,
    /// Overload: an adaptive limit, or somebody more critical goes first. Not the caller's fault.
    Shed,
    /// The cost is more than the limit can ever hold: waiting does not help.
    Never,
    /// The store is away and the configured answer is no.
    Degraded,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Rate,
        Self::Concurrency,
        Self::Global,
        Self::Shared,
        Self::Shed,
        Self::Never,
        Self::Degraded,
    ];

    /// As headers and metadata write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Concurrency => "concurrency",
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Shed => "shed",
            Self::Never => "never",
            Self::Degraded => "degraded",
        }
    }

    /// Whether others are the cause: 503 and not 429 where there is a choice.
    pub const fn is_others_fault(self) -> bool {
        matches!(self, Self::Shared | Self::Shed)
    }
}

/// One limit after the decision.
#[derive(Clone, Debug)]
pub struct Standing<'v> {
    /// Number of the limit in the order of the request.
    pub place: usize,
    /// The rule; none for a limit that came with the request.
    pub rule: Option<&'v Arc<Rule>>,
    /// The limit's own name, if it has one.
    pub name: Option<&'v str>,
    /// Tells the limits of a rule apart; see [`Limit::discriminator`].
    pub discriminator: u64,
    /// How it counts; none for work in flight.
    pub algorithm: Option<&'v Algorithm>,
    /// The counter.
    pub key: CounterKey,
    /// What one unit is.
    pub cost_unit: &'v CostUnit,
    /// The most that can be used at once.
    pub capacity: u64,
    /// How long all of it takes to come back; none for work in flight.
    pub window: Option<Span>,
    /// What was used before the request.
    pub used: u64,
    /// What is left.
    pub remaining: u64,
    /// Until nothing is used any more.
    pub reset: Span,
    /// Until the same cost passes.
    pub retry: Retry,
    /// Until more than `remaining` can be had; see [`Outcome::more`].
    pub more: Option<Span>,
    /// This limit is why the request does not pass. Shadow limits never are.
    pub refused: Option<Reason>,
}

impl Standing<'_> {
    /// Whose limit it is.
    pub fn scope(&self) -> Scope {
        self.rule.map_or(Scope::User, |rule| rule.scope)
    }

    /// What people call it: the path of its rule, and its own name behind a `/` if it has one.
    pub fn label(&self) -> String {
        let path = self.rule.map_or("request", |rule| rule.path.as_str());
        match self.name {
            Some(name) => format!("{path}/{name}"),
            None => path.to_owned(),
        }
    }

    /// The refusing one before others; of those the one that takes longest to pass; else the one
    /// with the least left.
    fn order(&self) -> (bool, Reverse<Span>, u64) {
        let refused = self.refused.is_some();
        let wait = if refused {
            wait(self.retry)
        } else {
            Span::ZERO
        };
        (!refused, Reverse(wait), self.remaining)
    }
}

impl Verdict<'_> {
    /// Every limit that is enforced, the most restrictive first: those that refused the request by
    /// how long they take to pass, then the others by what is left; equals in the order of the
    /// request. The first is the *binding* limit. A counter that the request touched twice is there
    /// once. Shadow limits, refunds and unlimited rules are not there.
    pub fn standings(&self) -> SmallVec<[Standing<'_>; 4]> {
        let mut standings: SmallVec<[Standing<'_>; 4]> = SmallVec::new();
        for status in self.statuses() {
            if !status.is_enforced() {
                continue;
            }
            let refused_by = self.is_refused_by(&status);
            for standing in status.limits() {
                let standing = Standing {
                    refused: standing.refused.filter(|_| refused_by),
                    ..standing
                };
                match standings.iter_mut().find(|other| other.key == standing.key) {
                    Some(earlier) if earlier.order() <= standing.order() => {}
                    Some(earlier) => {
                        *earlier = Standing {
                            place: earlier.place,
                            ..standing
                        };
                    }
                    None => {
                        let place = standings.len();
                        standings.push(Standing { place, ..standing });
                    }
                }
            }
        }
        standings.sort_by_key(Standing::order);
        standings
    }
}

impl<'v> Status<'v, '_> {
    /// Shadow limits and refunds never stand in the way.
    fn is_enforced(&self) -> bool {
        self.touched
            .is_some_and(|touched| !touched.shadow && !touched.refund)
    }

    /// Every limit that the descriptor touched, shadow limits too: [`Standing::refused`] tells what
    /// each of them says, whether or not the request passes all the same.
    pub fn limits(&self) -> SmallVec<[Standing<'v>; 2]> {
        let Some(touched) = self.touched else {
            return SmallVec::new();
        };
        let one = |(counter, outcome): (Counter<'v>, &Outcome)| {
            standing(touched, counter.limit, counter.key, outcome)
        };
        let mut standings: SmallVec<[Standing<'v>; 2]> =
            touched.counters().zip(self.outcomes).map(one).collect();
        if let (Some(permits), Some(outcome)) = (&touched.permits, self.outcomes.last()) {
            standings.extend(in_flight(touched, permits, outcome));
        }
        standings
    }
}

impl Status<'_, '_> {
    /// Why each of the limits refuses that do: [`Standing::refused`] of [`Status::limits`].
    pub(super) fn reasons(&self) -> impl Iterator<Item = Reason> {
        let outcomes = self.outcomes;
        self.touched.into_iter().flat_map(move |touched| {
            let rule = touched.rule();
            let scope = rule.map(|rule| rule.scope);
            let rates = touched.counters().zip(outcomes);
            let rates = rates.filter_map(move |(_, outcome)| reason(outcome, scope));
            let permits = rule.and(touched.permits.as_ref()).zip(outcomes.last());
            rates.chain(permits.and_then(|(permits, outcome)| reason_in_flight(outcome, permits)))
        })
    }
}

/// Why a limit refuses, if it does.
fn reason(outcome: &Outcome, scope: Option<Scope>) -> Option<Reason> {
    let reason = match (outcome.retry, scope) {
        (Retry::Never, _) => Reason::Never,
        (Retry::After(_), Some(Scope::Global)) => Reason::Global,
        (Retry::After(_), Some(Scope::Shared)) => Reason::Shared,
        (Retry::After(_), _) => Reason::Rate,
    };
    (!outcome.allowed).then_some(reason)
}

/// Why a limit on work in flight refuses, if it does.
fn reason_in_flight(outcome: &Outcome, permits: &Permits) -> Option<Reason> {
    let reason = match (outcome.retry, permits.refused) {
        (Retry::Never, _) => Reason::Never,
        (Retry::After(_), Some(Refused::Shared)) => Reason::Shared,
        (Retry::After(_), Some(Refused::Shed)) => Reason::Shed,
        (Retry::After(_), Some(Refused::Own) | None) => Reason::Concurrency,
    };
    (!outcome.allowed).then_some(reason)
}

/// How a limit on work in flight stands.
fn in_flight<'v>(
    touched: &'v Touched<'_>,
    permits: &Permits,
    outcome: &Outcome,
) -> Option<Standing<'v>> {
    let rule = touched.rule()?;
    Some(Standing {
        place: 0,
        rule: Some(rule),
        name: rule.concurrency.as_ref()?.name.as_deref(),
        discriminator: u64::MAX,
        algorithm: None,
        key: permits.key,
        cost_unit: &CostUnit::Requests,
        capacity: permits.limit,
        window: None,
        used: outcome.used_before,
        remaining: outcome.remaining,
        reset: outcome.reset,
        retry: outcome.retry,
        more: None,
        refused: reason_in_flight(outcome, permits),
    })
}

fn standing<'v>(
    touched: &'v Touched<'_>,
    limit: &'v Limit,
    key: CounterKey,
    outcome: &Outcome,
) -> Standing<'v> {
    let rule = touched.rule();
    Standing {
        place: 0,
        rule,
        name: limit.name.as_deref(),
        discriminator: limit.discriminator,
        algorithm: Some(&limit.algorithm),
        key,
        cost_unit: &limit.cost_unit,
        capacity: limit.capacity(),
        window: Some(limit.window()),
        used: outcome.used_before,
        remaining: outcome.remaining,
        reset: outcome.reset,
        retry: outcome.retry,
        more: outcome.more,
        refused: reason(outcome, rule.map(|rule| rule.scope)),
    }
}

/// A hint that is longer by up to `permille` thousandths, so that callers refused together do not
/// come back together. The same caller at the same instant gets the same hint.
#[must_use]
pub fn spread(hint: Span, permille: u32, key: CounterKey, now: Timestamp) -> Span {
    if permille == 0 {
        return hint;
    }
    let widest = u128::from(hint.as_nanos()) * u128::from(permille) / 1_000;
    // SplitMix64's finalizer: well mixed bits from what differs between callers and instants.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "any 64 of the key's random bits do"
    )]
    let mut mixed = (key.bits() as u64) ^ now.as_nanos();
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
        mixed = (mixed ^ (mixed >> shift)).wrapping_mul(factor);
    }
    mixed ^= mixed >> 31;
    let extra = u64::try_from((widest * u128::from(mixed)) >> 64).unwrap_or(u64::MAX);
    hint.saturating_add(Span::from_nanos(extra))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_hints_only_grow_and_stay_within_their_share() {
        let hint = Span::from_secs(10);
        let now = Timestamp::from_secs(1_000);
        let hints: Vec<Span> = (0..1_000_u128)
            .map(|caller| spread(hint, 200, CounterKey::from_bits(caller << 7), now))
            .collect();
        assert!(
            hints
                .iter()
                .all(|told| *told >= hint && *told < Span::from_secs(12))
        );
        let later = hints
            .iter()
            .filter(|told| **told > Span::from_secs(11))
            .count();
        assert!(
            (400..600).contains(&later),
            "{later} of 1000 in the upper half"
        );
        assert_eq!(spread(hint, 0, CounterKey::from_bits(9), now), hint);
    }
}
