//! The statistics of all rules, under the reference's stat paths.

use std::sync::Arc;

use crate::telemetry::{
    by_path::ByPath,
    names::Names,
    rule::{RuleStats, Sums},
};

/// All stat paths. Paths that come from rule files always have a place, and keep it
/// [for a while](ByPath) when the files drop them; of paths with texts of a request in them the
/// [most used](Names) have one, and the rest is counted under `<domain>.other`.
#[derive(Debug)]
pub struct RuleRegistry {
    rules: ByPath<RuleStats>,
    /// What has no name, by domain.
    others: ByPath<RuleStats>,
    names: Names,
}

/// Stands for the domain of requests whose domain is not there.
pub const UNKNOWN_DOMAIN: &str = "unknown";

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
            rules: ByPath::default(),
            others: ByPath::default(),
            names: Names::new(max_from_requests),
        }
    }

    /// Follows a load of the rule files: the counters of these paths, in their order. `domains`
    /// are all that there are now.
    pub fn load<'p>(
        &self,
        paths: impl IntoIterator<Item = &'p str>,
        domains: impl IntoIterator<Item = &'p str>,
    ) -> Vec<Arc<RuleStats>> {
        self.others
            .refresh(domains.into_iter().chain([UNKNOWN_DOMAIN]));
        self.rules.load(paths)
    }

    /// The counters of a path with texts of a request of `domain` in it, to which `hits` are about
    /// to be added.
    pub fn of_request(&self, domain: &str, path: &str, hits: u64) -> Arc<RuleStats> {
        // An override may have the path of a rule.
        let named = self.rules.get(path);
        named
            .or_else(|| self.names.get(path, hits))
            .unwrap_or_else(|| self.others.get_or_new(domain))
    }

    /// The paths with texts of requests in them.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Calls `each` with every path and its sums.
    pub fn for_each(&self, mut each: impl FnMut(&str, Sums)) {
        self.rules.for_each(|path, stats| each(path, stats.sums()));
        self.others
            .for_each(|domain, stats| each(&format!("{domain}.other"), stats.sums()));
        self.names.for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{by_path::MOST_DEPARTED, rule::RuleStat};

    #[test]
    fn paths_from_requests_are_bounded() {
        let registry = RuleRegistry::new(2);
        let _live = registry.load(["d.k"], ["d"]);
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
        // What has no name goes with its domain.
        for load in 0..2 * MOST_DEPARTED {
            let rest = format!("d{load}");
            let _live = registry.load([], ["d", rest.as_str()]);
            registry.of_request(&rest, "more", 1);
        }
        let mut rests = Vec::new();
        registry.for_each(|path, _| rests.extend(path.strip_suffix(".other").map(str::to_owned)));
        // Of `d`, of those that are gone, and of the latest.
        assert_eq!(rests.len(), MOST_DEPARTED + 2);
        assert!(rests.contains(&"d".to_owned()) && !rests.contains(&"d1".to_owned()));
    }
}
