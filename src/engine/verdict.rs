//! What the answer will say: one status per descriptor, the overall code, the binding limit.

use std::cmp::Reverse;

use crate::{
    algorithm::{Outcome, Retry},
    engine::resolve::{Counter, Resolved, Touched},
    model::time::{Now, Span},
    rules::{Domain, limit::Shown},
    store::{Degraded, Outcomes, Role},
};

/// Pass or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    /// Pass.
    #[default]
    Ok,
    /// Do not pass.
    OverLimit,
}

/// The answer to one request. Large, so decisions write it in its place and it can be used again.
#[derive(Debug, Default)]
pub struct Verdict<'r> {
    /// None when the request's domain is not there.
    pub domain: Option<&'r Domain>,
    /// What decides.
    pub code: Code,
    /// Global shadow mode turned a refusal into a pass.
    pub shadowed: bool,
    /// The shared store did not decide.
    pub degraded: Option<Degraded>,
    /// When it was decided.
    pub now: Now,
    /// What the descriptors touch; empty when the domain is not there.
    pub(super) resolved: Resolved<'r>,
    /// One per counter and one for permits behind them, those of a descriptor together.
    pub(super) outcomes: Outcomes,
    /// Descriptors of a request whose domain is not there.
    strangers: usize,
}

/// The answer to one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'v, 'r> {
    /// OK for shadow rules, whatever they counted.
    pub code: Code,
    /// What the descriptor touched; none when the domain is not there.
    pub touched: Option<&'v Touched<'r>>,
    /// One outcome per counter of `touched`, and behind them one for its permits.
    pub outcomes: &'v [Outcome],
    /// Index of the outcome that describes the descriptor: the refusing one that takes longest to
    /// pass, else the one with the least left. None when no limit applied.
    pub binding: Option<usize>,
}

impl<'r> Verdict<'r> {
    /// To be filled by a decision.
    pub fn new() -> Self {
        Self::default()
    }

    /// Before anything is known of a request that was read at `now`: everything passes. What was
    /// decided before is forgotten.
    pub(super) fn begin(&mut self, domain: Option<&'r Domain>, descriptors: usize, now: Now) {
        self.domain = domain;
        self.code = Code::Ok;
        self.shadowed = false;
        self.degraded = None;
        self.now = now;
        self.resolved.clear();
        self.outcomes.clear();
        self.strangers = if domain.is_none() { descriptors } else { 0 };
    }

    /// Works out the code, once the outcomes are there.
    pub(super) fn conclude(&mut self) {
        self.code = if let [touched] = &*self.resolved {
            // Most requests: what the one says holds for all, also of quota.
            Status::of(touched, &self.outcomes).code
        } else {
            overall(self.statuses())
        };
    }

    /// One status per descriptor, in the order of the request.
    pub fn statuses(&self) -> impl Iterator<Item = Status<'_, 'r>> {
        let mut outcomes = &*self.outcomes;
        let known = self.resolved.iter().map(move |touched| {
            let count = touched.counters().count() + usize::from(touched.permits.is_some());
            let (own, behind) = outcomes.split_at(count.min(outcomes.len()));
            outcomes = behind;
            Status::of(touched, own)
        });
        known.chain(std::iter::repeat_n(Status::STRANGER, self.strangers))
    }
}

impl Verdict<'_> {
    /// When the same request would pass: when all enforced limits pass and, if there are quota
    /// descriptors, one of them does. None when it passed.
    pub fn retry(&self) -> Option<Retry> {
        if self.code == Code::Ok {
            return None;
        }
        let waits = |role: Role| {
            let of_role = self.statuses().filter(move |status| status.role() == role);
            of_role.map(|status| status.wait())
        };
        let enforced = waits(Role::Enforced).max();
        let quota = waits(Role::Quota).min();
        enforced.max(quota).map(|wait| match wait {
            Span::MAX => Retry::Never,
            wait => Retry::After(wait),
        })
    }

    /// Whether a descriptor is why the request does not pass: it is over and enforced, or it is
    /// over and so are all other quota descriptors.
    pub(super) fn is_refused_by(&self, status: &Status<'_, '_>) -> bool {
        let over = |status: &Status<'_, '_>| status.code == Code::OverLimit;
        self.code == Code::OverLimit
            && over(status)
            && match status.role() {
                Role::Enforced => true,
                Role::Quota => {
                    let mut quota = self.statuses().filter(|s| s.role() == Role::Quota);
                    quota.all(|status| over(&status))
                }
            }
    }
}

/// A limit as the protocol's own fields tell it.
#[derive(Clone, Copy, Debug)]
pub struct Told<'v> {
    /// The limit's own name; empty when it has none.
    pub name: &'v str,
    /// The limit as the protocol shows it. Permits have no unit.
    pub shown: Shown,
    /// What is left; nothing of a limit that refuses.
    pub remaining: u64,
    /// Until nothing is used any more; until the same cost passes if it was refused and ever will.
    pub reset: Span,
}

impl<'v, 'r> Status<'v, 'r> {
    /// Of a descriptor whose domain is not there.
    const STRANGER: Self = Self {
        code: Code::Ok,
        touched: None,
        outcomes: &[],
        binding: None,
    };

    #[inline]
    fn of(touched: &'v Touched<'r>, outcomes: &'v [Outcome]) -> Self {
        let binding = binding(outcomes);
        let refused = binding.is_some_and(|index| !outcomes[index].allowed);
        let over = refused && !touched.shadow && !touched.refund;
        Self {
            code: if over { Code::OverLimit } else { Code::Ok },
            touched: Some(touched),
            outcomes,
            binding,
        }
    }
}

impl<'v> Status<'v, '_> {
    /// The outcome that describes this descriptor.
    pub fn bound(&self) -> Option<&'v Outcome> {
        self.outcomes.get(self.binding?)
    }

    /// What the protocol's own fields say of this descriptor.
    ///
    /// The reference reports nothing left of a limit that refuses, which is also what makes Envoy
    /// describe that limit in its `x-ratelimit-*` headers: it takes the one with the least left.
    /// From the reset of the limits that refuse Envoy makes its `Retry-After`, so for those it is
    /// the hint; for the reference's windows the two are the same, and for a bucket, whose reset is
    /// the time until it is full, the hint is as true and sooner.
    pub fn told(&self) -> Option<Told<'v>> {
        let outcome = self.bound()?;
        let (name, shown) = self.limit(self.binding?)?;
        let refused = !outcome.allowed;
        Some(Told {
            name,
            shown,
            remaining: if refused { 0 } else { outcome.remaining },
            reset: match outcome.retry {
                Retry::After(wait) if refused => wait,
                _ => outcome.reset,
            },
        })
    }

    /// Name and face of the limit of an outcome.
    fn limit(&self, index: usize) -> Option<(&'v str, Shown)> {
        let touched = self.touched?;
        if let Some(Counter { limit, .. }) = touched.counters().nth(index) {
            return Some((limit.name.as_deref().unwrap_or_default(), limit.shown));
        }
        let permits = touched.permits.as_ref()?;
        let rule = touched.rule()?.concurrency.as_ref()?;
        let requests_per_unit = u32::try_from(permits.limit).unwrap_or(u32::MAX);
        let shown = Shown {
            requests_per_unit,
            unit: None,
            unit_multiplier: 1,
        };
        Some((rule.name.as_deref().unwrap_or_default(), shown))
    }

    /// Until this descriptor passes (again); [`Span::MAX`] for never.
    fn wait(&self) -> Span {
        let holds = |touched: &Touched<'_>| !touched.shadow && !touched.refund;
        if !self.touched.is_some_and(holds) {
            return Span::ZERO;
        }
        let waits = self.outcomes.iter().map(|outcome| wait(outcome.retry));
        waits.max().unwrap_or_default()
    }

    /// The rule says: no limit.
    pub fn is_unlimited(&self) -> bool {
        self.touched.is_some_and(Touched::is_unlimited)
    }

    /// What a refusal here means.
    pub fn role(&self) -> Role {
        self.touched.map_or(Role::Enforced, |touched| touched.role)
    }
}

/// A refusing outcome before a passing one; of refusing ones the one that takes longest to pass;
/// of passing ones the one with the least left; of equals the first.
fn binding(outcomes: &[Outcome]) -> Option<usize> {
    if let [_] = outcomes {
        return Some(0);
    }
    let order = |outcome: &Outcome| {
        let longest = if outcome.allowed {
            Span::ZERO
        } else {
            wait(outcome.retry)
        };
        (outcome.allowed, Reverse(longest), outcome.remaining)
    };
    let indexed = outcomes.iter().enumerate();
    indexed
        .min_by_key(|(_, outcome)| order(outcome))
        .map(|(index, _)| index)
}

/// The wait of a hint, for comparing; "never" is the longest.
pub(super) const fn wait(retry: Retry) -> Span {
    match retry {
        Retry::Never => Span::MAX,
        Retry::After(wait) => wait,
    }
}

/// Over when a descriptor that is not quota is over, or when there are quota descriptors and all
/// of them are over.
fn overall<'v, 'r: 'v>(statuses: impl Iterator<Item = Status<'v, 'r>>) -> Code {
    let mut quota = 0_usize;
    let mut quota_over = 0_usize;
    for status in statuses {
        match (status.role(), status.code) {
            (Role::Enforced, Code::OverLimit) => return Code::OverLimit,
            (Role::Quota, code) => {
                quota += 1;
                quota_over += usize::from(code == Code::OverLimit);
            }
            (Role::Enforced, Code::Ok) => {}
        }
    }
    if quota > 0 && quota == quota_over {
        Code::OverLimit
    } else {
        Code::Ok
    }
}
