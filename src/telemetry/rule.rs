//! Statistics per rule, by the reference's names and under its stat paths.

use std::sync::Arc;

use dashmap::DashMap;

use crate::telemetry::{names::Names, stripe::Striped};

/// What is counted per stat path, in units of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RuleStat {
    /// Everything that was asked of a limit.
    TotalHits,
    /// What went over it.
    OverLimit,
    /// What passed above the near line, or would have before it went over.
    NearLimit,
    /// What passed.
    WithinLimit,
    /// What went over in a rule in shadow mode.
    ShadowMode,
    /// What a local cache refused without asking the shared store.
    OverLimitWithLocalCache,
    /// Requests for a domain that is not there; the path is the domain.
    DomainNotFound,
}

impl RuleStat {
    /// Every statistic, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::TotalHits,
        Self::OverLimit,
        Self::NearLimit,
        Self::WithinLimit,
        Self::ShadowMode,
        Self::OverLimitWithLocalCache,
        Self::DomainNotFound,
    ];

    /// The reference's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TotalHits => "total_hits",
            Self::OverLimit => "over_limit",
            Self::NearLimit => "near_limit",
            Self::WithinLimit => "within_limit",
            Self::ShadowMode => "shadow_mode",
            Self::OverLimitWithLocalCache => "over_limit_with_local_cache",
            Self::DomainNotFound => "domain_not_found",
        }
    }
}

/// Sums in the order of [`RuleStat::ALL`].
pub type Sums = [u64; RuleStat::ALL.len()];

/// The counters of one stat path.
#[derive(Debug, Default)]
pub struct RuleStats(Striped<{ RuleStat::ALL.len() }>);

impl RuleStats {
    /// Goes on from these sums.
    pub fn starting_at(sums: Sums) -> Self {
        Self(Striped::starting_at(sums))
    }

    /// Adds to one statistic.
    pub fn add(&self, stat: RuleStat, by: u64) {
        self.0.add(stat as usize, by);
    }

    /// All sums.
    pub fn sums(&self) -> Sums {
        self.0.sums()
    }
}

/// All stat paths. Paths that come from rule files always have a place; of paths with texts of a
/// request in them the [most used](Names) have one, and the rest is counted under
/// `<domain>.other`.
#[derive(Debug)]
pub struct RuleRegistry {
    paths: DashMap<Box<str>, Arc<RuleStats>>,
    names: Names,
}

/// Default bound on stat paths with texts of requests in them.
pub const DEFAULT_MAX_DYNAMIC_PATHS: usize = 10_000;

impl Default for RuleRegistry {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_DYNAMIC_PATHS)
    }
}

impl RuleRegistry {
    /// An empty registry with a bound on paths from requests.
    pub fn new(max_from_requests: usize) -> Self {
        Self {
            paths: DashMap::new(),
            names: Names::new(max_from_requests),
        }
    }

    /// The counters of a path that rule files determine.
    pub fn of_rule(&self, path: &str) -> Arc<RuleStats> {
        if let Some(stats) = self.paths.get(path) {
            return Arc::clone(&stats);
        }
        Arc::clone(&self.paths.entry(path.into()).or_default())
    }

    /// The counters of a path with texts of a request of `domain` in it, to which `hits` are about
    /// to be added.
    pub fn of_request(&self, domain: &str, path: &str, hits: u64) -> Arc<RuleStats> {
        if let Some(stats) = self.paths.get(path) {
            return Arc::clone(&stats);
        }
        self.names
            .get(path, hits)
            .unwrap_or_else(|| self.of_rule(&format!("{domain}.other")))
    }

    /// The paths with texts of requests in them.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Calls `each` with every path and its sums.
    pub fn for_each(&self, mut each: impl FnMut(&str, Sums)) {
        for entry in &self.paths {
            each(entry.key(), entry.value().sums());
        }
        self.names.for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_from_requests_are_bounded() {
        let registry = RuleRegistry::new(2);
        registry.of_rule("d.k");
        for value in 0..100 {
            registry
                .of_request("d", &format!("d.k_{value}"), 1)
                .add(RuleStat::TotalHits, 1);
        }
        let mut paths = Vec::new();
        registry.for_each(|path, sums| paths.push((path.to_owned(), sums[0])));
        paths.sort();
        let want = [("d.k", 0), ("d.k_0", 1), ("d.k_1", 1), ("d.other", 98)];
        assert_eq!(paths, want.map(|(path, hits)| (path.to_owned(), hits)));
    }
}
