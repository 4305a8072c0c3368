//! What HTTP has to know of a refusal and Envoy's message does not say.

use crate::{
    algorithm::Retry,
    engine::{standing::Reason, verdict::Verdict},
    model::time::Span,
};

/// A refusal as HTTP tells it; an extension of the response to [`Tell::Http`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit that takes longest to pass is one that callers share, or the refusal is shedding:
    /// 503 and not 429 over HTTP.
    pub others_fault: bool,
    /// When to come back; none when never.
    pub retry_after: Option<Span>,
}

impl Refusal {
    pub(super) fn of(verdict: &Verdict<'_>) -> Option<Self> {
        let retry_after = match verdict.retry()? {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        };
        let standings = verdict.standings();
        let reason = standings.first().and_then(|binding| binding.refused);
        Some(Self {
            others_fault: reason.is_some_and(Reason::is_others_fault),
            retry_after,
        })
    }
}

/// Who wants to know; as an extension of the request. Without one it is Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// It has the message.
    #[default]
    Envoy,
    /// It needs a [`Refusal`].
    Http,
}
