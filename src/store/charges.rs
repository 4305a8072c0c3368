//! What one request asks of a store, and what it gets for an answer: data, whatever the store.

use smallvec::SmallVec;

use crate::{
    algorithm::{Outcome, Retry},
    model::{key::CounterKey, limit::Algorithm, time::Span},
    rules::{Stacking, limit::Limit},
};

/// One thing asked of one counter.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'r> {
    /// The counter.
    pub key: CounterKey,
    /// What it is held to.
    pub limit: &'r Limit,
    /// How many units; 0 looks without touching.
    pub cost: u64,
    /// The units are given back instead of taken.
    pub refund: bool,
    /// What a refusal here means for the request.
    pub role: Role,
    /// A refusal is only counted.
    pub shadow: bool,
    /// Index of the descriptor in its request; the charges of one descriptor stand together.
    pub descriptor: usize,
}

impl<'r> Charge<'r> {
    /// Units taken by the first descriptor of a request, enforced.
    pub const fn new(key: CounterKey, limit: &'r Limit, cost: u64) -> Self {
        Self {
            key,
            limit,
            cost,
            refund: false,
            role: Role::Enforced,
            shadow: false,
            descriptor: 0,
        }
    }
}

/// What a refusal by one limit means for the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The request is refused.
    #[default]
    Enforced,
    /// The request is refused when every quota descriptor refuses.
    Quota,
}

/// Everything that one request asks of the store.
#[derive(Clone, Debug, Default)]
pub struct Charges<'r> {
    /// In the order of the request's descriptors, and of the limits of a rule.
    pub list: SmallVec<[Charge<'r>; 8]>,
    /// What holds for all of them.
    pub terms: Terms,
}

/// What holds for all charges of a request.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one request"
)]
pub struct Terms {
    /// Whether they stand alone.
    pub stacking: Stacking,
    /// A quota descriptor without charge is there: it passed already.
    pub quota_passed: bool,
    /// The answer tells [`Outcome::more`].
    pub tell_more: bool,
    /// How long the request can be held for a slot of the shaper, where its rule says `hold`; where
    /// it does not, not at all. Whole microseconds. None: as long as it takes, whatever the rule
    /// says.
    pub patience: Option<Span>,
    /// In a cluster, counters lie in many slots instead of their domain's, and those of each slot
    /// are decided for themselves: nothing is atomic over slots. Not with
    /// [`Stacking::AllOrNothing`].
    pub spread: bool,
    /// The request has more charges, which are decided elsewhere: every [`Outcome::retry`] is told
    /// as of a refused request.
    pub is_part: bool,
}

/// As they stack, and nothing else.
impl From<Stacking> for Terms {
    fn from(stacking: Stacking) -> Self {
        Self {
            stacking,
            ..Self::default()
        }
    }
}

/// One outcome per charge, in the same order, as of right after the decision.
///
/// When the request is refused, the [`Outcome::retry`] of *every* charge is the wait of its own
/// after which it would pass (again): under independent stacking what passed was taken all the
/// same.
pub type Outcomes = SmallVec<[Outcome; 8]>;

/// A request of one charge.
impl<'r> From<Charge<'r>> for Charges<'r> {
    fn from(charge: Charge<'r>) -> Self {
        Self {
            list: [charge].into_iter().collect(),
            terms: Terms::default(),
        }
    }
}

impl Terms {
    /// A slot of the shaper that lies further ahead than the request can be held is refused; the
    /// hint is when it would be near enough.
    pub fn within_patience(&self, charge: &Charge<'_>, outcome: Outcome) -> Outcome {
        let Some(patience) = self.patience_with(charge.limit) else {
            return outcome;
        };
        let queued = if outcome.allowed {
            outcome.delay
        } else if charge.limit.algorithm == Algorithm::LeakyQueue {
            // A place in the queue is not enough: its slot has to be near as well.
            outcome.reset
        } else {
            Span::ZERO
        };
        if queued <= patience {
            return outcome;
        }
        let near = queued.saturating_sub(patience);
        let retry = match outcome.retry {
            Retry::After(place) => Retry::After(near.max(place)),
            Retry::Never => Retry::Never,
        };
        Outcome {
            allowed: false,
            delay: Span::ZERO,
            retry,
            ..outcome
        }
    }

    /// How long the request can be held under this limit; none: as long as it takes.
    pub(in crate::store) fn patience_with(&self, limit: &Limit) -> Option<Span> {
        let patience = self.patience?;
        Some(if limit.hold { patience } else { Span::ZERO })
    }
}

impl Charges<'_> {
    /// Whether these outcomes refuse the request: an enforced limit refused, or there are quota
    /// descriptors and every one of them did.
    pub fn are_refused(&self, outcomes: &[Outcome]) -> bool {
        let mut quota = Quotas {
            seen: self.terms.quota_passed,
            all_refused: !self.terms.quota_passed,
        };
        let mut index = 0;
        while let Some(first) = self.list.get(index) {
            let of_descriptor =
                |(charge, _): &(&Charge<'_>, &Outcome)| charge.descriptor == first.descriptor;
            let group = self.list[index..]
                .iter()
                .zip(&outcomes[index..])
                .take_while(of_descriptor);
            let mut refused = false;
            for (charge, outcome) in group {
                index += 1;
                refused |= !outcome.allowed && !charge.refund && !charge.shadow;
            }
            match first.role {
                Role::Enforced if refused => return true,
                Role::Quota => {
                    quota.seen = true;
                    quota.all_refused &= refused;
                }
                Role::Enforced => {}
            }
        }
        quota.seen && quota.all_refused
    }
}

struct Quotas {
    seen: bool,
    all_refused: bool,
}

/// The cost of a charge together with earlier ones of the same request on the same counter. A look
/// (cost 0) stays a look, and a refund costs nothing.
pub(in crate::store) fn cost_so_far(charges: &[Charge<'_>], index: usize) -> u64 {
    let charge = &charges[index];
    if charge.cost == 0 || charge.refund {
        return 0;
    }
    let earlier = charges[..index]
        .iter()
        .filter(|other| other.key == charge.key && !other.refund);
    earlier.fold(charge.cost, |sum, other| sum.saturating_add(other.cost))
}
