//! What a reload keeps: the quota that each stored state was written under.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    model::limit::{Algorithm, Quota},
    rules::{
        Rules,
        limit::Limit,
        tree::{Level, Rule},
    },
};

/// How many earlier quotas a limit remembers. A state older than that is read with today's quota.
const HISTORY: usize = 4;

/// How many limits that went away are remembered; those that went first are forgotten first.
const DEPARTED: usize = 10_000;

/// The quotas of a limit, without the limit: of a rule that is gone, or of a life before. Its
/// counters may still be there, written under its quota, when a later load brings the rule back
/// with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// The domain of its rule.
    pub domain: Arc<str>,
    /// The path of its rule.
    pub path: Arc<str>,
    /// See [`Limit::discriminator`].
    pub discriminator: u64,
    /// See [`Limit::version`].
    pub version: u32,
    /// How it counted last.
    pub algorithm: Algorithm,
    /// How much it allowed last.
    pub quota: Quota,
    /// See [`Limit::history`].
    pub history: Arc<[(u32, Algorithm, Quota)]>,
}

/// Quotas by domain, rule path and discriminator.
type Before<'a> = HashMap<(&'a str, &'a str, u64), Cow<'a, Past>>;

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
            before.insert(gone.place(), Cow::Borrowed(gone));
        }
        for domain in old.domains.values() {
            for_each_limit(&domain.root, &mut |path, limit| {
                let past = Past::of(&domain.name, path, limit);
                let place = (&*domain.name, path, limit.discriminator);
                before.insert(place, Cow::Owned(past));
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

    /// No rules, but what is known of the limits of a life before.
    pub fn remembering(past: Vec<Past>) -> Self {
        Self {
            departed: past,
            ..Self::default()
        }
    }

    /// The quotas that counters may have been written under, of these rules and of those before.
    pub fn past(&self) -> Vec<Past> {
        let mut past = self.departed.clone();
        for domain in self.domains() {
            for_each_limit(&domain.root, &mut |path, limit| {
                past.push(Past::of(&domain.name, path, limit));
            });
        }
        past
    }

    /// The limits of these rules and of those before them that `new` does not have.
    fn departing(&self, new: &Self) -> Vec<Past> {
        let mut here = HashSet::new();
        for domain in new.domains.values() {
            for_each_limit(&domain.root, &mut |path, limit| {
                here.insert((&*domain.name, path, limit.discriminator));
            });
        }
        let mut departed = self.past();
        departed.retain(|gone| !here.contains(&gone.place()));
        departed.drain(..departed.len().saturating_sub(DEPARTED));
        departed
    }
}

impl Past {
    fn of(domain: &Arc<str>, path: &str, limit: &Limit) -> Self {
        Self {
            domain: Arc::clone(domain),
            path: Arc::from(path),
            discriminator: limit.discriminator,
            version: limit.version,
            algorithm: limit.algorithm.clone(),
            quota: limit.quota,
            history: Arc::clone(&limit.history),
        }
    }

    fn place(&self) -> (&str, &str, u64) {
        (&self.domain, &self.path, self.discriminator)
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
