//! What the answer will say: one status per descriptor, the overall code, the binding limit.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::{
    algorithm::{Outcome, Retry},
    engine::resolve::{Resolved, Touched},
    model::time::{Now, Span},
    rules::{Domain, limit::Limit},
    store::{Outcomes, Role},
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

/// The answer to one request.
#[derive(Debug)]
pub struct Verdict<'r> {
    /// None when the request's domain is not there.
    pub domain: Option<&'r Domain>,
    /// What decides.
    pub code: Code,
    /// Global shadow mode turned a refusal into a pass.
    pub shadowed: bool,
    /// When it was decided.
    pub now: Now,
    /// What the descriptors touch; empty when the domain is not there.
    pub(super) resolved: Resolved<'r>,
    /// One per counter, the counters of a descriptor together.
    pub(super) outcomes: Outcomes,
    summaries: SmallVec<[Summary; 4]>,
}

/// What is worked out once per descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct Summary {
    code: Code,
    /// Place of its first outcome.
    first: usize,
    count: usize,
    binding: Option<usize>,
}

/// The answer to one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'v, 'r> {
    /// OK for shadow rules, whatever they counted.
    pub code: Code,
    /// What the descriptor touched; none when the domain is not there.
    pub touched: Option<&'v Touched<'r>>,
    /// One outcome per counter of `touched`.
    pub outcomes: &'v [Outcome],
    /// Index of the outcome that describes the descriptor: the refusing one that takes longest to
    /// pass, else the one with the least left. None when no limit applied.
    pub binding: Option<usize>,
}

impl<'r> Verdict<'r> {
    /// Before anything is known: everything passes.
    pub(super) fn new(domain: Option<&'r Domain>, descriptors: usize, now: Now) -> Self {
        Self {
            domain,
            code: Code::Ok,
            shadowed: false,
            now,
            resolved: SmallVec::new(),
            outcomes: SmallVec::new(),
            summaries: SmallVec::from_elem(Summary::default(), descriptors),
        }
    }

    /// Works out the codes, once the outcomes are there.
    pub(super) fn conclude(&mut self) {
        let mut first = 0;
        for (touched, summary) in self.resolved.iter().zip(&mut self.summaries) {
            let count = touched.counters.len();
            let own = self.outcomes.get(first..first + count).unwrap_or_default();
            *summary = Summary::of(touched, own, first);
            first += count;
        }
        self.code = overall(&self.resolved, &self.summaries);
    }

    /// One status per descriptor, in the order of the request.
    pub fn statuses(&self) -> impl DoubleEndedIterator<Item = Status<'_, 'r>> {
        self.summaries
            .iter()
            .enumerate()
            .map(|(index, summary)| Status {
                code: summary.code,
                touched: self.resolved.get(index),
                outcomes: self
                    .outcomes
                    .get(summary.first..summary.first + summary.count)
                    .unwrap_or_default(),
                binding: summary.binding,
            })
    }
}

impl Summary {
    fn of(touched: &Touched<'_>, outcomes: &[Outcome], first: usize) -> Self {
        let binding = binding(outcomes);
        let refused = binding.is_some_and(|index| !outcomes[index].allowed);
        let over = refused && !touched.shadow && !touched.refund;
        let code = if over { Code::OverLimit } else { Code::Ok };
        Self {
            code,
            first,
            count: outcomes.len(),
            binding,
        }
    }
}

impl<'v> Status<'v, '_> {
    /// The limit and the outcome that describe this descriptor.
    pub fn bound(&self) -> Option<(&'v Limit, &'v Outcome)> {
        let index = self.binding?;
        let touched = self.touched?;
        let counter = touched.counters.get(index)?;
        Some((touched.limit(*counter)?, self.outcomes.get(index)?))
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
        let wait = match outcome.retry {
            Retry::Never => Span::MAX,
            Retry::After(wait) => wait,
        };
        let longest = if outcome.allowed { Span::ZERO } else { wait };
        (outcome.allowed, Reverse(longest), outcome.remaining)
    };
    let indexed = outcomes.iter().enumerate();
    indexed
        .min_by_key(|(_, outcome)| order(outcome))
        .map(|(index, _)| index)
}

/// Over when a descriptor that is not quota is over, or when there are quota descriptors and all
/// of them are over.
fn overall(resolved: &[Touched<'_>], summaries: &[Summary]) -> Code {
    let mut quota = 0_usize;
    let mut quota_over = 0_usize;
    for (touched, summary) in resolved.iter().zip(summaries) {
        match (touched.role, summary.code) {
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
