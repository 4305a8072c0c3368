//! What a reload keeps: the quota that each stored state was written under.

use std::{collections::HashMap, sync::Arc};

use crate::rules::{
    Rules,
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
        let Self { domains, rules } = self;
        // The list holds the other reference to each rule; it is made anew below.
        drop(rules);
        let domains = domains.into_values().map(|mut domain| {
            if let Some(old) = old.domain(&domain.name) {
                let mut before = HashMap::new();
                old.root.remember(&mut before);
                Arc::make_mut(&mut domain).root.inherit(&before);
            }
            Arc::unwrap_or_clone(domain)
        });
        Self::new(domains)
    }
}

/// The limits of a domain by rule path and discriminator.
type Before<'a> = HashMap<(&'a str, u64), &'a Limit>;

impl Level {
    fn remember<'a>(&'a self, before: &mut Before<'a>) {
        for node in self.nodes() {
            if let Some(rule) = &node.rule {
                let limits = rule.limits.iter();
                let by_place =
                    |limit: &'a Limit| ((rule.path.as_str(), limit.discriminator), limit);
                before.extend(limits.map(by_place));
            }
            node.children.remember(before);
        }
    }

    fn inherit(&mut self, before: &Before<'_>) {
        for node in self.nodes_mut() {
            if let Some(rule) = &mut node.rule {
                Arc::make_mut(rule).inherit(before);
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
