//! A reload: what is sound moves on, what is broken keeps its old rules, domain by domain.

use std::sync::Arc;

use crate::{
    config::{Finding, Loaded},
    rules::Rules,
};

/// What comes of rule files that were read again.
#[derive(Debug)]
pub struct Reload {
    /// The rules from now on.
    pub rules: Rules,
    /// Domains whose old rules stay because of an error.
    pub kept: Vec<Arc<str>>,
    /// Domains that an error keeps from being there at all: they have no old rules.
    pub missing: Vec<Arc<str>>,
    /// Everything that was found.
    pub findings: Vec<Finding>,
    /// Identifies the contents of the files that were read.
    pub hash: String,
}

impl Loaded {
    /// Lays what was read over the rules so far.
    ///
    /// A domain with an error in any of its files keeps its old rules. So does every domain of a
    /// file of which not even the domain can be told. A domain that no file names any more is
    /// gone. (That what was used stays used is [`Rules::inheriting`]'s business.)
    pub fn reloading(self, old: &Rules) -> Reload {
        let (mut domains, mut kept, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for old in old.domains() {
            let sources = old.files.iter();
            if sources
                .into_iter()
                .any(|file| is_among(file, &self.unknown))
            {
                kept.push(Arc::clone(&old.name));
                domains.push(Arc::unwrap_or_clone(Arc::clone(old)));
            }
        }
        for loaded in self.domains {
            if kept.contains(&loaded.name) {
                continue;
            }
            match (loaded.domain, old.domain(&loaded.name)) {
                (Some(domain), _) => domains.push(domain),
                (None, Some(old)) => {
                    kept.push(loaded.name);
                    domains.push(Arc::unwrap_or_clone(Arc::clone(old)));
                }
                (None, None) => missing.push(loaded.name),
            }
        }
        Reload {
            rules: Rules::new(domains).of_revision(&self.hash),
            kept,
            missing,
            findings: self.findings,
            hash: self.hash,
        }
    }
}

/// Whether a file is one of those, or below one of them.
fn is_among(file: &str, unknown: &[Arc<str>]) -> bool {
    unknown.iter().any(|unknown| {
        file.strip_prefix(&**unknown)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || unknown.ends_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LoadOptions, parse};

    fn load(files: &[(&str, &str)]) -> Loaded {
        parse(files, &LoadOptions::default())
    }

    fn text(domain: &str, requests: u32) -> String {
        format!(
            "domain: {domain}\ndescriptors:\n- key: k\n  \
             rate_limit: {{unit: day, requests_per_unit: {requests}}}\n"
        )
    }

    fn units(rules: &Rules) -> Vec<(String, u64)> {
        let rules = rules.rules().iter();
        rules
            .map(|rule| (rule.path.clone(), rule.limits[0].quota.units()))
            .collect()
    }

    #[test]
    fn a_broken_file_keeps_its_domain_and_the_others_move_on() {
        let old = load(&[("a.yaml", &text("a", 1)), ("b.yaml", &text("b", 1))]);
        let old = old.into_rules().unwrap();
        let broken = text("a", 2).replace("unit: day", "unit: dya");
        let reload = load(&[("a.yaml", &broken), ("b.yaml", &text("b", 2))]).reloading(&old);
        assert_eq!(units(&reload.rules), [("a.k".into(), 1), ("b.k".into(), 2)]);
        assert_eq!(reload.kept, [Arc::from("a")]);
        assert_eq!(reload.findings.len(), 1);
        let ids: Vec<u32> = reload.rules.rules().iter().map(|rule| rule.id).collect();
        assert_eq!(ids, [0, 1]);
    }

    #[test]
    fn a_file_without_a_domain_keeps_what_came_from_it() {
        let old = load(&[("d/a.yaml", &text("a", 1)), ("d/b.yaml", &text("b", 1))]);
        let old = old.into_rules().unwrap();
        let reload = load(&[("d/a.yaml", "{"), ("d/b.yaml", &text("b", 2))]).reloading(&old);
        assert_eq!(units(&reload.rules), [("a.k".into(), 1), ("b.k".into(), 2)]);
        let unread = Loaded {
            unknown: vec!["d".into()],
            ..Loaded::default()
        };
        let reload = unread.reloading(&old);
        assert_eq!(units(&reload.rules), [("a.k".into(), 1), ("b.k".into(), 1)]);
    }

    #[test]
    fn the_domain_is_told_even_of_broken_yaml() {
        let old = load(&[("x.yaml", &text("a", 1))]).into_rules().unwrap();
        // The file was renamed and broken at once: its name does not help.
        let broken = text("a", 2).replace("- key", "] key");
        let reload = load(&[("y.yaml", &broken)]).reloading(&old);
        assert_eq!(units(&reload.rules), [("a.k".into(), 1)]);
        assert_eq!(reload.kept, [Arc::from("a")]);
    }

    #[test]
    fn a_file_that_is_gone_takes_its_domain_along() {
        let old = load(&[("a.yaml", &text("a", 1)), ("b.yaml", &text("b", 1))]);
        let old = old.into_rules().unwrap();
        let reload = load(&[("b.yaml", &text("b", 1)), ("c.yaml", "domain: c\nx: 1")]);
        let reload = reload.reloading(&old);
        assert_eq!(units(&reload.rules), [("b.k".into(), 1)]);
        assert_eq!(reload.missing, [Arc::from("c")]);
    }

    #[test]
    fn a_changed_limit_remembers_its_quota_and_a_kept_one_its_history() {
        let first = load(&[("a.yaml", &text("a", 1))]).into_rules().unwrap();
        let second = load(&[("a.yaml", &text("a", 2))]).reloading(&first).rules;
        let second = second.inheriting(&first);
        let third = load(&[("a.yaml", "domain: a\ndescriptors: 1")]).reloading(&second);
        let third = third.rules.inheriting(&second);
        let limit = &third.rules()[0].limits[0];
        assert_eq!((limit.version, limit.quota.units()), (1, 2));
        let (version, _, quota) = &limit.history[0];
        assert_eq!((*version, quota.units()), (0, 1));
    }
}
