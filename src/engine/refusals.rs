//! Which rules refuse, and why: counted at refusals only, by rule and [`Reason`], both closed sets.

use std::sync::Arc;

use dashmap::DashMap;

use crate::{
    engine::{standing::Reason, verdict::Verdict},
    rules::{OnStoreFailure, Rules},
    telemetry::stripe::Striped,
};

/// Refusals of one rule, by reason.
pub(super) type Counts = Striped<{ Reason::ALL.len() }>;

/// Refusals of every rule there ever was.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_path: DashMap<Box<str>, Arc<Counts>>,
    /// By limits that came with requests, and by what the store's absence means.
    by_no_rule: Counts,
}

impl Refusals {
    /// The counters of these rules, by [`crate::rules::tree::Rule::id`].
    pub(super) fn of_rules(&self, rules: &Rules) -> Vec<Arc<Counts>> {
        let rules = rules.rules().iter();
        rules
            .map(|rule| Arc::clone(&self.by_path.entry(rule.path.as_str().into()).or_default()))
            .collect()
    }

    /// Counts a refused request once for each limit that refused it.
    pub(super) fn count(&self, of_rules: &[Arc<Counts>], verdict: &Verdict<'_>) {
        if verdict
            .degraded
            .is_some_and(|degraded| degraded.answer == OnStoreFailure::Deny)
        {
            return self.by_no_rule.add(Reason::Degraded as usize, 1);
        }
        for status in verdict.statuses() {
            if !verdict.is_refused_by(&status) {
                continue;
            }
            for standing in status.limits() {
                let Some(reason) = standing.refused else {
                    continue;
                };
                let id = standing.rule.and_then(|rule| usize::try_from(rule.id).ok());
                let counts = id.and_then(|id| of_rules.get(id));
                counts
                    .map_or(&self.by_no_rule, Arc::as_ref)
                    .add(reason as usize, 1);
            }
        }
    }

    /// Calls `each` with rule, reason and number of whatever refused; the rule is empty for
    /// refusals by none.
    pub(super) fn for_each(&self, mut each: impl FnMut(&str, Reason, u64)) {
        let mut tell = |path: &str, counts: &Counts| {
            for (reason, sum) in Reason::ALL.into_iter().zip(counts.sums()) {
                if sum > 0 {
                    each(path, reason, sum);
                }
            }
        };
        tell("", &self.by_no_rule);
        let entries = self.by_path.iter();
        let mut all: Vec<(Box<str>, Arc<Counts>)> = entries
            .map(|entry| (entry.key().clone(), Arc::clone(entry.value())))
            .collect();
        // The same page for the same counts.
        all.sort_by(|a, b| a.0.cmp(&b.0));
        for (path, counts) in &all {
            tell(path, counts);
        }
    }
}
