//! What a reload keeps: the quota that each stored state was written under.

use std::{collections::HashMap, sync::Arc};

use crate::rules::{
    Domain, Rules,
    limit::Limit,
    tree::{Level, Rule},
};

/// How many earlier quotas a limit remembers. A state older than that is read with today's quota.
const HISTORY: usize = 4;

impl Rules {
    /// Lets every limit that is at its old place take over its version and history, so that what
    /// was used stays used when the quota changed. To be called before the rules are shared.
    #[must_use]
    pub fn inheriting(self, old: &Self) -> Self {
        let mut before = HashMap::new();
        for rule in &old.rules {
            for limit in &rule.limits {
                before.insert((rule.path.as_str(), limit.discriminator), limit);
            }
        }
        let Self { domains, rules } = self;
        // The list holds the other reference to each rule; it is made anew below.
        drop(rules);
        let mut domains: Vec<Domain> = domains.into_values().filter_map(Arc::into_inner).collect();
        for domain in &mut domains {
            domain.root.inherit(&before);
        }
        Self::new(domains)
    }
}

type Before<'a> = HashMap<(&'a str, u64), &'a Limit>;

impl Level {
    fn inherit(&mut self, before: &Before<'_>) {
        for node in self.nodes_mut() {
            if let Some(rule) = node.rule.as_mut().and_then(Arc::get_mut) {
                rule.inherit(before);
            }
            node.children.inherit(before);
        }
    }
}

impl Rule {
    fn inherit(&mut self, before: &Before<'_>) {
        for limit in &mut self.limits {
            let Some(old) = before.get(&(self.path.as_str(), limit.discriminator)) else {
                continue;
            };
            if old.quota == limit.quota && old.algorithm == limit.algorithm {
                limit.version = old.version;
                limit.history = Arc::clone(&old.history);
            } else {
                let newest = (old.version, old.algorithm.clone(), old.quota);
                let history = std::iter::once(newest).chain(old.history.iter().cloned());
                limit.version = old.version.wrapping_add(1);
                limit.history = history.take(HISTORY).collect();
            }
        }
    }
}
