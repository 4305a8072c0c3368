//! An answer, and who gave it.

use crate::{
    rules::OnStoreFailure,
    store::{charges::Outcomes, redis::StoreError},
};

/// What was decided, and by whom.
#[derive(Debug)]
pub struct Decided {
    /// One outcome per charge.
    pub outcomes: Outcomes,
    /// Set when the shared store did not decide.
    pub degraded: Option<Degraded>,
    /// A refusal that is remembered from an earlier request: the shared store was not asked.
    pub remembered: bool,
}

/// The shared store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// What the domain says for that.
    pub answer: OnStoreFailure,
    /// Why.
    pub error: StoreError,
}

impl From<Outcomes> for Decided {
    fn from(outcomes: Outcomes) -> Self {
        Self {
            outcomes,
            degraded: None,
            remembered: false,
        }
    }
}
