//! What the answer will say: one status per descriptor, the overall code, the binding limit.

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
    /// One per descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 4]>,
    /// When it was decided.
    pub now: Now,
}

/// The answer to one descriptor.
#[derive(Debug, Default)]
pub struct Status<'r> {
    /// OK for shadow rules, whatever they counted.
    pub code: Code,
    /// What the descriptor touched; none when the domain is not there.
    pub touched: Option<Touched<'r>>,
    /// One outcome per counter of `touched`.
    pub outcomes: SmallVec<[Outcome; 1]>,
    /// Index of the outcome that describes the descriptor: the refusing one that takes longest to
    /// pass, else the one with the least left. None when no limit applied.
    pub binding: Option<usize>,
}

impl<'r> Verdict<'r> {
    /// The domain is not there: everything passes, nothing is known.
    pub fn of_unknown_domain(descriptors: usize, now: Now) -> Self {
        let statuses = std::iter::repeat_with(Status::default)
            .take(descriptors)
            .collect();
        Self {
            domain: None,
            code: Code::Ok,
            shadowed: false,
            statuses,
            now,
        }
    }

    /// Puts the store's outcomes, one per charge in order, back to their descriptors.
    pub fn new(domain: &'r Domain, resolved: Resolved<'r>, outcomes: Outcomes, now: Now) -> Self {
        let mut outcomes = outcomes.into_iter();
        let statuses: SmallVec<[Status<'r>; 4]> = resolved
            .descriptors
            .into_iter()
            .map(|touched| {
                let own = outcomes.by_ref().take(touched.counters.len()).collect();
                Status::new(touched, own)
            })
            .collect();
        Self {
            domain: Some(domain),
            code: overall(&statuses),
            shadowed: false,
            statuses,
            now,
        }
    }
}

impl<'r> Status<'r> {
    fn new(touched: Touched<'r>, outcomes: SmallVec<[Outcome; 1]>) -> Self {
        let binding = binding(&outcomes);
        let refused = binding.is_some_and(|index| !outcomes[index].allowed);
        let over = refused && !touched.shadow && !touched.refund;
        let code = if over { Code::OverLimit } else { Code::Ok };
        Self {
            code,
            touched: Some(touched),
            outcomes,
            binding,
        }
    }

    /// The limit and the outcome that describe this descriptor.
    pub fn bound(&self) -> Option<(&Limit, &Outcome)> {
        let index = self.binding?;
        let touched = self.touched.as_ref()?;
        let (limit, _) = touched.counters.get(index)?;
        Some((touched.limits().get(*limit)?, self.outcomes.get(index)?))
    }

    /// The rule says: no limit.
    pub fn is_unlimited(&self) -> bool {
        self.touched.as_ref().is_some_and(Touched::is_unlimited)
    }

    fn role(&self) -> Role {
        self.touched
            .as_ref()
            .map_or(Role::Enforced, |touched| touched.role)
    }
}

/// A refusing outcome before a passing one; of refusing ones the one that takes longest to pass;
/// of passing ones the one with the least left; of equals the first.
fn binding(outcomes: &[Outcome]) -> Option<usize> {
    let order = |outcome: &Outcome| {
        let wait = match outcome.retry {
            Retry::Never => Span::MAX,
            Retry::After(wait) => wait,
        };
        let longest = if outcome.allowed { Span::ZERO } else { wait };
        (
            outcome.allowed,
            std::cmp::Reverse(longest),
            outcome.remaining,
        )
    };
    outcomes
        .iter()
        .enumerate()
        .min_by_key(|(_, outcome)| order(outcome))
        .map(|(index, _)| index)
}

/// Over when a descriptor that is not quota is over, or when there are quota descriptors and all
/// of them are over.
fn overall(statuses: &[Status<'_>]) -> Code {
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
