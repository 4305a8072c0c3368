//! From a descriptor to its rule: one step per entry, no backtracking.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::{
    model::{
        key::{CounterKey, KeyHasher},
        request::Entry,
    },
    rules::{
        Domain,
        concurrency::ConcurrencyRule,
        step::{How, Step},
        tree::{Above, Level, Node, Rule},
        value::Matcher,
    },
};

/// A rule that was found, and the name of its counters.
#[derive(Clone, Copy, Debug)]
pub struct Found<'r> {
    /// The rule at the last step.
    pub rule: &'r Arc<Rule>,
    /// Of domain and entries, each as its [`Step::hash`] says: the limits of the rule count under
    /// [siblings](CounterKey::sibling) of it. Means nothing when the rule has none.
    pub name: CounterKey,
    /// See [`Match::has_static_path`].
    pub has_static_path: bool,
}

/// What is hashed into a counter's key, to be hashed when the key is made: what is known of it
/// before requests come need not be copied for each.
#[derive(Clone, Copy, Debug)]
struct Name<'n> {
    begin: Begin<'n>,
    /// A text behind that.
    last: Option<&'n str>,
}

#[derive(Clone, Copy, Debug)]
enum Begin<'n> {
    Known(&'n KeyHasher),
    Hashed(KeyHasher),
}

impl Name<'_> {
    /// All of it.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the hash goes on in registers where it is inlined"
    )]
    fn hasher(&self) -> KeyHasher {
        let mut hasher = match &self.begin {
            Begin::Known(known) => **known,
            Begin::Hashed(hashed) => *hashed,
        };
        if let Some(last) = self.last {
            hasher.text(last);
        }
        hasher
    }
}

impl<'n> From<&'n KeyHasher> for Name<'n> {
    fn from(known: &'n KeyHasher) -> Self {
        Self {
            begin: Begin::Known(known),
            last: None,
        }
    }
}

impl From<KeyHasher> for Name<'_> {
    fn from(hashed: KeyHasher) -> Self {
        Self {
            begin: Begin::Hashed(hashed),
            last: None,
        }
    }
}

/// The steps of a descriptor that ended at a rule.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// The rule at the last step.
    pub rule: &'r Arc<Rule>,
    /// One per entry.
    pub steps: SmallVec<[Step<'r>; 4]>,
}

/// What a table has for a text. Of a few, comparing with each is quicker than hashing.
#[inline]
pub(super) fn by_text<'t, T>(table: &'t HashMap<Box<str>, T>, text: &str) -> Option<&'t T> {
    const FEW: usize = 4;
    if table.is_empty() {
        return None;
    }
    if table.len() > FEW {
        return table.get(text);
    }
    let known = table.iter().find(|(known, _)| ***known == *text);
    known.map(|(_, value)| value)
}

impl Level {
    /// The child for one entry.
    pub fn step(&self, entry: Entry<'_>) -> Option<Step<'_>> {
        let Entry { key, value } = entry;
        if let Some(node) = by_text(&self.exact, key).and_then(|values| values.get(value)) {
            return Some(Step {
                node,
                how: How::Exact,
            });
        }
        if !self.patterns.is_empty()
            && let Some(step) = self.step_by_pattern(entry)
        {
            return Some(step);
        }
        by_text(&self.any, key).map(|node| Step {
            node,
            how: How::KeyOnly,
        })
    }

    #[inline(never)]
    fn step_by_pattern(&self, Entry { key, value }: Entry<'_>) -> Option<Step<'_>> {
        // A value that is the text of a pattern is that pattern, before any other that matches.
        let literal = |(_, node): &&(Matcher, Node)| *node.key == *key && *node.value == *value;
        if let Some((_, node)) = self.patterns.iter().find(literal) {
            return Some(Step {
                node,
                how: How::Exact,
            });
        }
        let pattern = self
            .patterns
            .iter()
            .find(|(matcher, node)| matcher.matches(&node.key, key, value));
        pattern.map(|(_, node)| Step {
            node,
            how: How::Pattern,
        })
    }
}

impl Domain {
    /// The rule of a descriptor: the limit at exactly its depth. A shorter descriptor gets the
    /// inner node's limit if there is one; a longer one gets nothing, unless the rest only tells
    /// something about a request for permits ([`crate::rules::concurrency::Entries::only_tells`]).
    pub fn find(&self, entries: &[Entry<'_>]) -> Option<Match<'_>> {
        let mut steps = SmallVec::new();
        let rule = self.walk(entries, |step, _| steps.push(step))?;
        Some(Match { rule, steps })
    }

    /// [`Domain::find`] for a decision: the steps are hashed on the way and not kept. `hasher` is
    /// that of [`Rules::keyed`](crate::rules::Rules::keyed), with nothing in it.
    #[inline]
    pub fn find_hashed(&self, entries: &[Entry<'_>], hasher: &KeyHasher) -> Option<Found<'_>> {
        let mut name = match &self.root.above {
            Above::All(above) => Name::from(above),
            Above::AllButValue(_) | Above::Nothing => self.named(hasher).into(),
        };
        let mut detailed = false;
        let rule = self.walk(entries, |step, entry| {
            match &step.node.children.above {
                Above::All(above) => name = above.into(),
                Above::AllButValue(above) if step.node.mask.is_none() => {
                    name = above.into();
                    name.last = Some(entry.value);
                }
                Above::AllButValue(above) => {
                    let mut hasher = *above;
                    step.hash_value(entry, &mut hasher);
                    name = hasher.into();
                }
                Above::Nothing => {
                    let mut hasher = name.hasher();
                    step.hash(entry, &mut hasher);
                    name = hasher.into();
                }
            }
            detailed |= step.node.value_to_metric;
        })?;
        let name = if rule.limits.is_empty() {
            CounterKey::from_bits(0)
        } else {
            name.hasher().finish()
        };
        Some(Found {
            rule,
            name,
            has_static_path: !detailed && !rule.detailed_metric,
        })
    }

    /// `hasher` with this domain in it, as all its counters begin.
    pub fn named(&self, hasher: &KeyHasher) -> KeyHasher {
        let mut hasher = *hasher;
        hasher.text(&self.name);
        hasher
    }

    #[inline]
    fn walk<'r, 'e>(
        &'r self,
        entries: &[Entry<'e>],
        mut through: impl FnMut(Step<'r>, Entry<'e>),
    ) -> Option<&'r Arc<Rule>> {
        let (mut level, mut last) = (&self.root, None);
        let mut rest = entries;
        while let [entry, behind @ ..] = rest
            && let Some(step) = level.step(*entry)
        {
            through(step, *entry);
            (level, last) = (&step.node.children, Some(step.node));
            rest = behind;
        }
        ending_at(last?, rest)
    }
}

/// The rule of the last node, if the entries behind it only tell something.
fn ending_at<'r>(node: &'r Node, rest: &[Entry<'_>]) -> Option<&'r Arc<Rule>> {
    let rule = node.rule.as_ref()?;
    let told = |concurrency: &Arc<ConcurrencyRule>| {
        rest.iter()
            .all(|entry| concurrency.entries.only_tells(entry.key))
    };
    let ends_here = rest.is_empty() || rule.concurrency.as_ref().is_some_and(told);
    ends_here.then_some(rule)
}

impl Match<'_> {
    /// `hasher` with what the entries contribute to a counter key.
    pub fn hashed(&self, entries: &[Entry<'_>], hasher: &KeyHasher) -> KeyHasher {
        let mut hasher = *hasher;
        for (step, entry) in self.steps.iter().zip(entries) {
            step.hash(*entry, &mut hasher);
        }
        hasher
    }

    /// True when the stat path is the same for every request that ends at this rule.
    pub fn has_static_path(&self) -> bool {
        !self.rule.detailed_metric && !self.steps.iter().any(|step| step.node.value_to_metric)
    }

    /// True when texts of this request are in the stat path. The reference builds a new rule object
    /// then and forgets its metadata, so such answers carry none.
    pub fn shows_values(&self, entries: &[Entry<'_>]) -> bool {
        let shows = |(step, entry): (&Step<'_>, &Entry<'_>)| {
            let value_shown = match step.how {
                How::Exact => false,
                How::Pattern => true,
                How::KeyOnly => !entry.value.is_empty(),
            };
            step.node.value_to_metric && !step.is_shared() && value_shown
        };
        self.rule.detailed_metric || self.steps.iter().zip(entries).any(shows)
    }

    /// The reference's name for this rule's statistics: domain and levels joined by dots. A level
    /// shows its pattern, its text, or its runtime value where the rule asks for that.
    pub fn stat_path(&self, domain: &str, entries: &[Entry<'_>]) -> String {
        let mut path = domain.to_owned();
        for (step, entry) in self.steps.iter().zip(entries) {
            path.push('.');
            // Writing to a String cannot fail.
            let _ = write!(
                path,
                "{}",
                StatLevel {
                    rule: self.rule,
                    step: *step,
                    entry: *entry
                }
            );
        }
        path
    }

    /// Writes the descriptor as people write it (`tenant=acme,user=ann`, with a backslash before
    /// commas and backslashes of a value), as far as it may be shown: a value stands there where
    /// the stat path would have it, of an address that is counted by its network the network, and
    /// what a rule file says anyway.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_shown(&self, entries: &[Entry<'_>], out: &mut impl fmt::Write) -> fmt::Result {
        for (index, (step, entry)) in self.steps.iter().zip(entries).enumerate() {
            if index > 0 {
                out.write_char(',')?;
            }
            out.write_str(entry.key)?;
            let node = step.node;
            if step.is_shared() {
                write!(out, "={}", node.value)?;
            } else if self.rule.detailed_metric || node.value_to_metric || step.how == How::Exact {
                out.write_char('=')?;
                if let Some(network) = node.mask.and_then(|mask| mask.apply(entry.value)) {
                    write!(out, "{network}")?;
                    continue;
                }
                let special = |c: char| matches!(c, ',' | '\\');
                for piece in entry.value.split_inclusive(special) {
                    let plain = piece.trim_end_matches(special);
                    out.write_str(plain)?;
                    if let Some(last) = piece.strip_prefix(plain).filter(|last| !last.is_empty()) {
                        write!(out, "\\{last}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// One level of a stat path.
struct StatLevel<'a> {
    rule: &'a Rule,
    step: Step<'a>,
    entry: Entry<'a>,
}

impl fmt::Display for StatLevel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, step, entry } = self;
        let node = step.node;
        if step.is_shared() {
            return write!(f, "{}_{}", node.key, node.value);
        }
        if rule.detailed_metric {
            return write!(f, "{}_{}", entry.key, entry.value);
        }
        match step.how {
            How::Pattern | How::KeyOnly if node.value_to_metric => match entry.value {
                "" => f.write_str(entry.key),
                value => write!(f, "{}_{value}", entry.key),
            },
            // `*` in a key without a value.
            How::Pattern if node.value.is_empty() => f.write_str(&node.key),
            How::Exact | How::Pattern => write!(f, "{}_{}", node.key, node.value),
            How::KeyOnly => f.write_str(&node.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LoadOptions, parse};

    const RULES: &str = r"
domain: d
descriptors:
- key: plain
  rate_limit: {unit: day, requests_per_unit: 1}
- key: all
  descriptors:
  - {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- key: some
  value_to_metric: true
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: ip, mask: {ipv4: 24, ipv6: 64}, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: p, value: 'a*', share_threshold: true, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
";

    #[test]
    fn what_may_be_shown_of_a_descriptor() {
        let loaded = parse(&[("f.yaml", RULES)], &LoadOptions::default());
        let rules = loaded.into_rules().unwrap();
        let domain = rules.domain("d").unwrap();
        let shown = |pairs: &[(&str, &str)]| {
            let entry = |(key, value): &(&'static str, &'static str)| Entry { key, value };
            let pairs: Vec<(&'static str, &'static str)> = pairs
                .iter()
                .map(|(key, value)| (&*key.to_string().leak(), &*value.to_string().leak()))
                .collect();
            let entries: Vec<Entry<'_>> = pairs.iter().map(entry).collect();
            let mut text = String::new();
            let matched = domain.find(&entries).unwrap();
            matched.write_shown(&entries, &mut text).unwrap();
            (text, matched.shows_values(&entries))
        };
        for (pairs, want, shows) in [
            (&[("plain", "secret")][..], "plain", false),
            (
                &[("all", "x"), ("user", r"a,b\c")],
                r"all=x,user=a\,b\\c",
                true,
            ),
            (&[("some", "acme"), ("user", "ann")], "some=acme,user", true),
            (&[("ip", "10.1.2.3")], "ip=10.1.2.0/24", true),
            (&[("p", "abc")], "p=a*", true),
        ] {
            assert_eq!(shown(pairs), (want.to_owned(), shows));
        }
    }
}
