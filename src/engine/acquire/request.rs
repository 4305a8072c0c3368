//! A request for permits, and what it gets.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    engine::DecideError,
    model::{
        lease::{Criticality, Holder, LeaseId},
        request::Entry,
        time::Span,
    },
    store::lease::{Answer, AskError, SessionId},
};

/// A request for permits.
#[derive(Clone, Debug)]
pub struct AcquireRequest<'a> {
    /// Names the rule tree.
    pub domain: &'a str,
    /// What is asked for; at least one.
    pub items: SmallVec<[AcquireItem<'a>; 2]>,
    /// See [`Ask`](crate::store::lease::Ask).
    pub request_id: &'a [u8],
    /// Who asks.
    pub holder: Holder,
    /// Life of the lease.
    pub ttl: Option<Span>,
    /// Mean hold to start from.
    pub expected_hold: Option<Span>,
    /// How long it may wait.
    pub max_wait: Option<Span>,
    /// How long until the caller gives up.
    pub timeout: Option<Span>,
    /// Who is refused first.
    pub criticality: Criticality,
    /// Place inside the criticality.
    pub cohort: Option<u8>,
    /// Leases that the caller still holds.
    pub adopt: &'a [LeaseId],
    /// Fewer permits will do.
    pub partial: bool,
    /// Decide and change nothing.
    pub dry_run: bool,
    /// Items without a rule refuse the request.
    pub refuse_unknown: bool,
    /// The lease ends with this session.
    pub session: Option<SessionId>,
}

/// One item of a request for permits.
#[derive(Clone, Debug)]
pub struct AcquireItem<'a> {
    /// Finds the rule.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// Permits of the rule's concurrency limit; none asks for none.
    pub permits: Option<u64>,
    /// The caller did not say how many: the rule may know better.
    pub unsaid: bool,
    /// How few permits would do.
    pub least: u64,
    /// Units of the rule's rate limits; none asks for none.
    pub hits: Option<u64>,
}

/// What a request for permits gets.
#[derive(Debug)]
pub struct AcquireAnswer {
    /// The decision. Its items are those of the request, in its order.
    pub answer: Box<Answer>,
    /// What the limits of the items are called, in the order of the request.
    pub names: SmallVec<[Arc<str>; 2]>,
    /// The shared store did not decide.
    pub degraded: bool,
}

/// Why a request for permits cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// As for any request.
    #[error(transparent)]
    Decide(#[from] DecideError),
    /// What the lease book says.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The server stopped while the request waited.
    #[error("the server is stopping")]
    Stopping,
    /// The call's deadline passed while it waited; what it was granted is undone.
    #[error("the deadline passed before the answer could leave")]
    TooLate,
}
