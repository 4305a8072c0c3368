//! Pure integer arithmetic, one file per algorithm: (state, quota, now, cost) → outcome.
//!
//! No clock, no lock, no I/O, no logging, no panic: given a state, an algorithm cannot fail.
//! Windows are half open, refusals consume nothing, hints are rounded up to the next nanosecond
//! and are true: whoever waits exactly `retry_after` is admitted if nobody else came.

use crate::model::time::Span;

/// When the same cost would pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After this long, if nobody else comes; zero when it passes now.
    After(Span),
    /// Never: the cost is more than the limit can ever hold.
    Never,
}

/// What an algorithm says of one cost against one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// Whether the cost passes (for a peek: whether it would).
    pub allowed: bool,
    /// Units used before this request, as the algorithm counts them, rounded up.
    pub used_before: u64,
    /// Units that could still be taken at once after this request, rounded down.
    pub remaining: u64,
    /// Until nothing is used any more: the window's end, or the bucket is full again.
    pub reset: Span,
    /// When the same cost would pass.
    pub retry: Retry,
    /// The shaper only: how long the admitted request has to be held.
    pub delay: Span,
}
