//! Why a limit moved, in words for logs and for people who ask.

use std::fmt;

use crate::algorithm::concurrency::law::Window;

/// What made a law step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Nothing to do: the limit was not in use, or all is well.
    Hold,
    /// Room for more.
    Grow,
    /// Requests were slower than they should be.
    Slow,
    /// Too many requests were dropped.
    Drops,
    /// The floor guard: the service was seen to need this many.
    Floor,
    /// The knee guard tries a lower limit.
    Probe,
    /// The lower limit cost no throughput and stays.
    ProbeKept,
    /// The lower limit cost throughput and is taken back.
    ProbeUndone,
}

impl Reason {
    /// A label value: lower case, one word.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Grow => "grow",
            Self::Slow => "slow",
            Self::Drops => "drops",
            Self::Floor => "floor",
            Self::Probe => "probe",
            Self::ProbeKept => "probe_kept",
            Self::ProbeUndone => "probe_undone",
        }
    }
}

/// A limit moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The limit before.
    pub from: u64,
    /// The limit now.
    pub to: u64,
    /// Why.
    pub reason: Reason,
    /// What was seen.
    pub window: Window,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from,
            to,
            reason,
            window,
        } = self;
        write!(
            f,
            "limit {from} to {to}: {} (mean latency {:.3} s, {:.1} done per second, {} dropped, \
             at most {} in flight)",
            reason.label(),
            window.latency.as_secs_f64(),
            window.throughput(),
            window.dropped,
            window.in_flight,
        )
    }
}
