//! What a reload keeps: the quota that each stored state was written under.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::rules::{
    Rules,
    limit::Limit,
    tree::{Level, Rule},
};

/// How many earlier quotas a limit remembers. A state older than that is read with today's quota.
const HISTORY: usize = 4;

/// How many limits that went away are remembered; those that went first are forgotten first.
const DEPARTED: usize = 10_000;

/// A limit whose rule is gone. Its counters may still be there, written under its quota, when a
/// later load brings the rule back with another one.
#[derive(Clone, Debug)]
pub(super) struct Departed {
    domain: Arc<str>,
    path: Arc<str>,
    limit: Limit,
}

/// Limits by domain, rule path and discriminator.
type Before<'a> = HashMap<(&'a str, &'a str, u64), &'a Limit>;

impl Rules {
    /// Lets every limit that is at its old place, or was there once, take over its version and
    /// history, so that what was used stays used when the quota changed. To be called before the
    /// rules are shared.
    #[must_use]
    pub fn inheriting(self, old: &Self) -> Self {
        let Self {
            domains,
            by_id,
            revision,
            ..
        } = self;
        // The list holds the other reference to each rule; it is made anew below.
        drop(by_id);
        let mut before = Before::new();
        for gone in &old.departed {
            before.insert(gone.place(), &gone.limit);
        }
        for domain in old.domains.values() {
            for_each_limit(&domain.root, &mut |path, limit| {
                before.insert((&domain.name, path, limit.discriminator), limit);
            });
        }
        let domains = domains.into_values().map(|mut domain| {
            let inner = Arc::make_mut(&mut domain);
            inner.root.inherit(&inner.name, &before);
            Arc::unwrap_or_clone(domain)
        });
        let mut rules = Self::new(domains);
        rules.departed = old.departing(&rules);
        rules.revision = revision;
        rules
    }

    /// The limits of these rules and of those before them that `new` does not have.
    fn departing(&self, new: &Self) -> Vec<Departed> {
        let mut here = HashSet::new();
        for domain in new.domains.values() {
            for_each_limit(&domain.root, &mut |path, limit| {
                here.insert((&*domain.name, path, limit.discriminator));
            });
        }
        let mut departed = self.departed.clone();
        for domain in self.domains() {
            for_each_limit(&domain.root, &mut |path, limit| {
                departed.push(Departed {
                    domain: Arc::clone(&domain.name),
                    path: Arc::from(path),
                    limit: limit.clone(),
                });
            });
        }
        departed.retain(|gone| !here.contains(&gone.place()));
        departed.drain(..departed.len().saturating_sub(DEPARTED));
        departed
    }
}

impl Departed {
    fn place(&self) -> (&str, &str, u64) {
        (&self.domain, &self.path, self.limit.discriminator)
    }
}

/// Every limit below a level, with the path of its rule.
fn for_each_limit<'a>(level: &'a Level, act: &mut impl FnMut(&'a str, &'a Limit)) {
    for node in level.nodes() {
        if let Some(rule) = &node.rule {
            rule.limits.iter().for_each(|limit| act(&rule.path, limit));
        }
        for_each_limit(&node.children, act);
    }
}

impl Level {
    fn inherit(&mut self, domain: &str, before: &Before<'_>) {
        for node in self.nodes_mut() {
            if let Some(rule) = &mut node.rule {
                Arc::make_mut(rule).inherit(domain, before);
            }
            node.children.inherit(domain, before);
        }
    }
}

impl Rule {
    fn inherit(&mut self, domain: &str, before: &Before<'_>) {
        for limit in &mut self.limits {
            let place = (domain, self.path.as_str(), limit.discriminator);
            let Some(old) = before.get(&place) else {
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
