//! Why a descriptor found its rule, or none: what [`Domain::find`] looked at, level by level.
//!
//! For people. The lookup itself remembers nothing of this.

use std::sync::Arc;

use crate::{
    model::request::Entry,
    rules::{
        Domain,
        step::{How, Step},
        tree::{Level, Node, Rule},
        value::Matcher,
    },
};

/// Most rules that are shown of one level.
pub const MOST_TRIED: usize = 20;

/// The way of one descriptor through a domain.
#[derive(Debug)]
pub struct Trace<'r> {
    /// One per entry, up to the one that nothing matched.
    pub levels: Vec<Tried<'r>>,
    /// Where it ended.
    pub end: End<'r>,
}

/// What one level had for one entry.
#[derive(Debug)]
pub struct Tried<'r> {
    /// In the order of precedence; rules for other keys come last.
    pub candidates: Vec<Candidate<'r>>,
    /// How many more there are.
    pub left_out: usize,
}

/// A rule of a level.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'r> {
    /// The rule's place in the tree.
    pub node: &'r Node,
    /// What became of it.
    pub why: Why,
}

/// Why a candidate was chosen or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is the one.
    Chosen(How),
    /// Its key is another.
    OtherKey,
    /// Its value is another.
    OtherValue,
    /// Its pattern or regular expression does not match.
    NoMatch,
    /// The address is not in its network.
    OtherNetwork,
    /// It has a network, and the value is no address.
    NoAddress,
    /// It matches, but something more specific does too.
    LessSpecific,
}

impl Why {
    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Chosen(How::Exact) => "chosen: key and value as written",
            Self::Chosen(How::Pattern) => "chosen: its pattern matches",
            Self::Chosen(How::KeyOnly) => "chosen: any value of this key",
            Self::OtherKey => "another key",
            Self::OtherValue => "another value",
            Self::NoMatch => "its pattern does not match",
            Self::OtherNetwork => "the address is not in its network",
            Self::NoAddress => "the value is no address",
            Self::LessSpecific => "matches, but a more specific rule goes first",
        }
    }
}

/// Where a descriptor ended.
#[derive(Clone, Copy, Debug)]
pub enum End<'r> {
    /// At this rule.
    Rule(&'r Arc<Rule>),
    /// It has no entries.
    NoEntries,
    /// Nothing matched the entry of that number, from 0.
    NoMatch(usize),
    /// Every entry matched, but there is no limit at that depth.
    NoLimit,
}

impl Domain {
    /// The way of a descriptor, told.
    pub fn trace(&self, entries: &[Entry<'_>]) -> Trace<'_> {
        let mut levels = Vec::new();
        let mut level = &self.root;
        let mut unmatched = None;
        for (index, entry) in entries.iter().enumerate() {
            let step = level.step(*entry);
            levels.push(level.tried(*entry, step));
            let Some(step) = step else {
                unmatched = Some(index);
                break;
            };
            level = &step.node.children;
        }
        let end = match (self.find(entries), unmatched) {
            (Some(matched), _) => End::Rule(matched.rule),
            (None, Some(index)) => End::NoMatch(index),
            (None, None) if entries.is_empty() => End::NoEntries,
            (None, None) => End::NoLimit,
        };
        Trace { levels, end }
    }
}

impl Level {
    fn tried(&self, entry: Entry<'_>, step: Option<Step<'_>>) -> Tried<'_> {
        let Entry { key, value } = entry;
        let why = |node: &Node, matches: bool, otherwise: Why| match step {
            Some(step) if std::ptr::eq(step.node, node) => Why::Chosen(step.how),
            _ if matches => Why::LessSpecific,
            _ => otherwise,
        };
        let mut candidates = Vec::new();
        for (other, values) in &self.exact {
            for node in values.values() {
                let why = why(node, false, other_text(**other == *key));
                candidates.push(Candidate { node, why });
            }
        }
        // The tables have no order of their own.
        candidates.sort_by_key(|c| (&c.node.key, &c.node.value));
        for (matcher, node) in &self.patterns {
            let matches = matcher.matches(&node.key, key, value);
            let why = why(node, matches, unmatched(matcher, node, entry));
            candidates.push(Candidate { node, why });
        }
        let first = candidates.len();
        for node in self.any.values() {
            let why = why(node, *node.key == *key, Why::OtherKey);
            candidates.push(Candidate { node, why });
        }
        candidates[first..].sort_by_key(|c| &c.node.key);
        candidates.sort_by_key(|c| c.why == Why::OtherKey);
        let left_out = candidates.len().saturating_sub(MOST_TRIED);
        // The chosen one is always shown.
        if let Some(place) = candidates
            .iter()
            .position(|candidate| matches!(candidate.why, Why::Chosen(_)))
            .filter(|place| *place >= MOST_TRIED)
        {
            candidates.swap(place, MOST_TRIED - 1);
        }
        candidates.truncate(MOST_TRIED);
        Tried {
            candidates,
            left_out,
        }
    }
}

const fn other_text(same_key: bool) -> Why {
    if same_key {
        Why::OtherValue
    } else {
        Why::OtherKey
    }
}

fn unmatched(matcher: &Matcher, node: &Node, entry: Entry<'_>) -> Why {
    match matcher {
        Matcher::Composite(_) => Why::NoMatch,
        _ if *node.key != *entry.key => Why::OtherKey,
        Matcher::Value(_) | Matcher::Regex(_) => Why::NoMatch,
        Matcher::Network(_) if entry.value.parse::<std::net::IpAddr>().is_err() => Why::NoAddress,
        Matcher::Network(_) => Why::OtherNetwork,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LoadOptions, parse};

    const RULES: &str = "
domain: d
descriptors:
- {key: ip, value: 'cidr:10.0.0.0/8', rate_limit: {unit: day, requests_per_unit: 1}}
- {key: ip, value: 'cidr:10.1.0.0/16', rate_limit: {unit: day, requests_per_unit: 1}}
- {key: ip, value: '10.1.1.1', rate_limit: {unit: day, requests_per_unit: 1}}
- {key: ip, rate_limit: {unit: day, requests_per_unit: 1}}
- key: path
  descriptors:
  - {key: user, value: 'a*', rate_limit: {unit: day, requests_per_unit: 1}}
";

    fn told(entries: &[(&str, &str)]) -> (Vec<Vec<(String, Why)>>, String) {
        let loaded = parse(&[("f.yaml", RULES)], &LoadOptions::default());
        let rules = loaded.into_rules().unwrap();
        let entries: Vec<Entry<'_>> = entries
            .iter()
            .map(|(key, value)| Entry { key, value })
            .collect();
        let trace = rules.domain("d").unwrap().trace(&entries);
        let of_level = |tried: &Tried<'_>| {
            let candidates = tried.candidates.iter();
            candidates
                .map(|c| (format!("{}={}", c.node.key, c.node.value), c.why))
                .collect()
        };
        let end = match trace.end {
            End::Rule(rule) => rule.path.clone(),
            other => format!("{other:?}"),
        };
        (trace.levels.iter().map(of_level).collect(), end)
    }

    #[test]
    fn every_rule_of_a_level_says_why() {
        let (levels, end) = told(&[("ip", "10.2.0.1")]);
        let want = [
            ("ip=10.1.1.1", Why::OtherValue),
            ("ip=cidr:10.1.0.0/16", Why::OtherNetwork),
            ("ip=cidr:10.0.0.0/8", Why::Chosen(How::Pattern)),
            ("ip=", Why::LessSpecific),
            ("path=", Why::OtherKey),
        ];
        assert_eq!(levels, [want.map(|(name, why)| (name.to_owned(), why))]);
        assert_eq!(end, "d.ip_cidr:10.0.0.0/8");
    }

    #[test]
    fn the_end_says_what_is_missing() {
        assert_eq!(told(&[]).1, "NoEntries");
        assert_eq!(told(&[("path", "/")]).1, "NoLimit");
        let (levels, end) = told(&[("path", "/"), ("user", "bob")]);
        assert_eq!(levels[1], [("user=a*".to_owned(), Why::NoMatch)]);
        assert_eq!(end, "NoMatch(1)");
    }

    #[test]
    fn a_level_shows_a_bounded_part_and_the_chosen_one() {
        let rule = |value: u32| {
            format!(
                "- {{key: k, value: v{value}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
            )
        };
        let rules: String = (100..200).map(rule).collect();
        let text = format!("domain: d\ndescriptors:\n{rules}");
        let rules = parse(&[("f.yaml", &text)], &LoadOptions::default());
        let rules = rules.into_rules().unwrap();
        let entry = Entry {
            key: "k",
            value: "v199",
        };
        let trace = rules.domain("d").unwrap().trace(&[entry]);
        let tried = &trace.levels[0];
        assert_eq!((tried.candidates.len(), tried.left_out), (MOST_TRIED, 80));
        let last = tried.candidates.last().unwrap();
        assert_eq!(last.why, Why::Chosen(How::Exact));
    }
}
