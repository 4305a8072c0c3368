//! What one may choose about decisions.

use crate::telemetry::{registry::DEFAULT_MAX_DYNAMIC_PATHS, top::sample::SAMPLED};

/// Switches of the reference service that concern every rule.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Share of a limit above which hits are counted as near it. Default 0.8.
    pub near_limit_ratio: f32,
    /// Global shadow mode: an overall refusal becomes OK and is counted.
    pub shadow_mode: bool,
    /// Every descriptor counts as quota.
    pub quota_mode: bool,
    /// Of so many requests of a busy worker one is counted for the [heaviest callers](crate::engine::top); 1: all,
    /// 0: none. Default [`SAMPLED`].
    pub top_sample: u32,
    /// Most stat paths with texts of requests in them; see [`RuleRegistry`](crate::telemetry::registry::RuleRegistry). Default
    /// [`DEFAULT_MAX_DYNAMIC_PATHS`].
    pub max_stat_paths: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            near_limit_ratio: 0.8,
            shadow_mode: false,
            quota_mode: false,
            top_sample: SAMPLED,
            max_stat_paths: DEFAULT_MAX_DYNAMIC_PATHS,
        }
    }
}
