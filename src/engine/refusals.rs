//! Which rules refuse, and why: counted at refusals only, by rule and [`Reason`], both closed sets.

use std::sync::Arc;

use crate::{
    engine::{resolve::Touched, standing::Reason, verdict::Verdict},
    rules::{OnStoreFailure, Rules},
    telemetry::{by_path::ByPath, stripe::Striped},
};

/// Refusals of one rule, by reason.
pub(super) type Counts = Striped<{ Reason::ALL.len() }>;

/// Sums in the order of [`Reason::ALL`].
type Counted = [u64; Reason::ALL.len()];

/// Refusals of every rule there is, and of those that were there lately.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_path: ByPath<Counts>,
    /// By limits that came with requests, and by what the store's absence means.
    by_no_rule: Counts,
}

impl Refusals {
    /// Follows a load of rules: their counters, by [`crate::rules::tree::Rule::id`].
    pub(super) fn load(&self, rules: &Rules) -> Vec<Arc<Counts>> {
        let rules = rules.rules().iter();
        self.by_path.load(rules.map(|rule| rule.path.as_str()))
    }

    /// How many rules there are and were lately.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_path.len()
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
            let rule = status.touched.and_then(Touched::rule);
            let counts = rule.and_then(|rule| of_rules.get(usize::try_from(rule.id).ok()?));
            let counts = counts.map_or(&self.by_no_rule, Arc::as_ref);
            for reason in status.reasons() {
                counts.add(reason as usize, 1);
            }
        }
    }

    /// Calls `each` with rule, reason and number of whatever refused; the rule is empty for
    /// refusals by none.
    pub(super) fn for_each(&self, mut each: impl FnMut(&str, Reason, u64)) {
        let mut tell = |path: &str, counted: &Counted| {
            for (reason, sum) in Reason::ALL.into_iter().zip(counted) {
                if *sum > 0 {
                    each(path, reason, *sum);
                }
            }
        };
        tell("", &self.by_no_rule.sums());
        let mut all: Vec<(Box<str>, Counted)> = Vec::new();
        self.by_path
            .for_each(|path, counts| all.push((path.into(), counts.sums())));
        // The same page for the same counts.
        all.sort_unstable();
        for (path, counted) in &all {
            tell(path, counted);
        }
    }
}
