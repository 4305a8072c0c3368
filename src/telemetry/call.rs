//! Statistics of calls and of the process, by the reference's names.

use crate::telemetry::stripe::Striped;

/// What is counted once per call or load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum CallStat {
    /// `ShouldRateLimit` calls.
    TotalRequests,
    /// Calls that were wrong: no domain, no descriptors, an impossible override.
    ServiceError,
    /// Calls that the shared store could not answer.
    RedisError,
    /// Refusals that global shadow mode turned into passes.
    GlobalShadowMode,
    /// Rules that were loaded.
    ConfigLoadSuccess,
    /// Rules that were refused.
    ConfigLoadError,
    /// Requests that passed.
    Passed,
    /// Requests that were refused.
    Refused,
}

impl CallStat {
    /// Every statistic, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::TotalRequests,
        Self::ServiceError,
        Self::RedisError,
        Self::GlobalShadowMode,
        Self::ConfigLoadSuccess,
        Self::ConfigLoadError,
        Self::Passed,
        Self::Refused,
    ];
}

/// The counters of the process.
#[derive(Debug, Default)]
pub struct CallStats(Striped<{ CallStat::ALL.len() }>);

impl CallStats {
    /// Adds one.
    pub fn count(&self, stat: CallStat) {
        self.0.add(stat as usize, 1);
    }

    /// The sum of one statistic.
    pub fn sum(&self, stat: CallStat) -> u64 {
        self.0.sums()[stat as usize]
    }
}
