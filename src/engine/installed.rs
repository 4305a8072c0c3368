//! The rules that decide now, and what is counted of each.

use std::sync::Arc;

use crate::{
    engine::refusals,
    rules::Rules,
    telemetry::{rule::RuleStats, top::RuleTop},
};

/// Rules with the counters of their statistics.
#[derive(Debug, Default)]
pub struct Installed {
    pub(super) rules: Arc<Rules>,
    /// By [`crate::rules::tree::Rule::id`].
    pub(super) stats: Vec<Arc<RuleStats>>,
    /// By [`crate::rules::tree::Rule::id`].
    pub(super) refusals: Vec<Arc<refusals::Counts>>,
    /// By [`crate::rules::tree::Rule::id`]; none of rules that are not watched.
    pub(super) tops: Vec<Option<Arc<RuleTop>>>,
    /// False until the first rules arrived.
    pub(super) loaded: bool,
}

impl Installed {
    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether rules were ever installed.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }
}
