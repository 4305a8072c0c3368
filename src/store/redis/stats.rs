//! What the store counts about itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    model::time::Span,
    store::redis::error::StoreError,
    telemetry::latency::{self, Latency},
};

/// Counters of the store; they only grow.
#[derive(Debug)]
pub(super) struct Stats {
    counts: [AtomicU64; Stat::ALL.len()],
    errors: [AtomicU64; StoreError::ALL.len()],
    latency: Latency,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// Requests decided by the store.
    Decided,
    /// Messages sent: as many requests as wait together share one.
    Messages,
    /// Connections opened.
    Connections,
    /// Attempts to connect that failed.
    FailedConnections,
    /// Times that the store had forgotten our script and got it again.
    ScriptsSent,
    /// Times that the breaker opened.
    BreakerOpened,
    /// Requests that were asked again because a calendar window was not known.
    CalendarRetries,
    /// Requests answered by remembered refusals.
    Remembered,
    /// Requests answered from blocks of sliced limits.
    Sliced,
    /// Units of blocks that were given back.
    SliceUnitsReturned,
    /// Units of blocks that could not be given back.
    SliceUnitsLost,
}

impl Stat {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Decided,
        Self::Messages,
        Self::Connections,
        Self::FailedConnections,
        Self::ScriptsSent,
        Self::BreakerOpened,
        Self::CalendarRetries,
        Self::Remembered,
        Self::Sliced,
        Self::SliceUnitsReturned,
        Self::SliceUnitsLost,
    ];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Messages => "messages",
            Self::Connections => "connections",
            Self::FailedConnections => "failed_connections",
            Self::ScriptsSent => "scripts_sent",
            Self::BreakerOpened => "breaker_opened",
            Self::CalendarRetries => "calendar_retries",
            Self::Remembered => "remembered_refusals",
            Self::Sliced => "sliced",
            Self::SliceUnitsReturned => "slice_units_returned",
            Self::SliceUnitsLost => "slice_units_lost",
        }
    }
}

/// The counters as they were at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// By kind.
    pub counts: Vec<(Stat, u64)>,
    /// Requests that the store did not decide, by reason.
    pub errors: Vec<(StoreError, u64)>,
    /// Requests that wait now.
    pub waiting: usize,
    /// Whether requests are not even tried now, for at least some of the keys.
    pub breaker_open: bool,
    /// How long requests were waited for, decided or not.
    pub latency: latency::Snapshot,
}

impl Snapshot {
    /// One of the counts.
    pub fn count(&self, stat: Stat) -> u64 {
        let found = self.counts.iter().find(|(name, _)| *name == stat);
        found.map_or(0, |(_, count)| *count)
    }

    /// One of the reasons.
    pub fn errors(&self, error: StoreError) -> u64 {
        let found = self.errors.iter().find(|(name, _)| *name == error);
        found.map_or(0, |(_, count)| *count)
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            counts: Default::default(),
            errors: Default::default(),
            latency: Latency::new(latency::FINE_MICROS),
        }
    }
}

impl Stats {
    pub(super) fn took(&self, span: Span) {
        self.latency.observe(span);
    }

    pub(super) fn latency(&self) -> latency::Snapshot {
        self.latency.snapshot()
    }

    pub(super) fn add(&self, stat: Stat, count: u64) {
        self.counts[stat as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn count(&self, stat: Stat) {
        self.add(stat, 1);
    }

    pub(super) fn error(&self, error: StoreError) {
        self.errors[error as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Vec<(Stat, u64)> {
        let read = |stat: Stat| self.counts[stat as usize].load(Ordering::Relaxed);
        Stat::ALL.map(|stat| (stat, read(stat))).into()
    }

    pub(super) fn errors(&self) -> Vec<(StoreError, u64)> {
        let read = |error: StoreError| self.errors[error as usize].load(Ordering::Relaxed);
        StoreError::ALL.map(|error| (error, read(error))).into()
    }
}
