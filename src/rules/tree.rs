//! The tree that a domain's `descriptors:` make.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::{
    model::{key::KeyHasher, request::Entry},
    rules::{
        answer::Scope,
        concurrency::ConcurrencyRule,
        limit::Limit,
        step::{How, Step},
        value::{Mask, Matcher},
    },
};

/// Children of a node, by what they match.
///
/// Precedence, most specific first: an exact text; the network (`cidr:`) with the longest prefix;
/// the first pattern (`*` or `regex:`) in the order of the files; the key alone. Whatever is chosen
/// is final: a less specific sibling is never tried, even if the chosen node leads nowhere.
#[derive(Clone, Debug, Default)]
pub struct Level {
    /// By key, then by value.
    pub(super) exact: HashMap<Box<str>, HashMap<Box<str>, Node>>,
    /// Networks, longest prefix first, then patterns in file order.
    pub(super) patterns: Vec<(Matcher, Node)>,
    /// By key alone.
    pub(super) any: HashMap<Box<str>, Node>,
    /// See [`Level::key`].
    pub(super) above: Above,
    /// A rule whose requests may have to wait is somewhere below.
    may_wait: bool,
    /// A sliced limit is somewhere below.
    has_slices: bool,
}

/// What is hashed of the way to a level before requests come, because it is the same for all of
/// them: a request that comes through need not hash it again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Above {
    /// Other texts of requests lead here.
    #[default]
    Nothing,
    /// All but the value of the entry that leads here.
    AllButValue(KeyHasher),
    /// All of it.
    All(KeyHasher),
}

/// How a child is found.
#[derive(Debug)]
pub enum Child {
    /// The value must be this text.
    Exact(Box<str>),
    /// The matcher decides.
    Pattern(Matcher),
    /// Any value, each with a counter of its own.
    Any,
}

/// One `descriptors:` element.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The rule's key.
    pub key: Box<str>,
    /// The rule's value as written; empty when it has none.
    pub value: Box<str>,
    /// All values that match the pattern share one counter.
    pub share_threshold: bool,
    /// The stat path has this level's runtime value.
    pub value_to_metric: bool,
    /// Addresses are counted per prefix.
    pub mask: Option<Mask>,
    /// The limit at this depth, if any.
    pub rule: Option<Arc<Rule>>,
    /// Deeper levels.
    pub children: Level,
}

/// What is done with a request that ends at a node.
#[expect(
    clippy::struct_excessive_bools,
    reason = "one per switch of the rule language"
)]
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// Index into [`super::Rules::rules`].
    pub id: u32,
    /// Domain and levels (`key` or `key_value`) joined by dots, as in the rule file; what people
    /// call this rule. Unique within the rules.
    pub path: String,
    /// All of these must pass; at most [`MOST_LIMITS`]. Empty for `unlimited` and for pure concurrency rules.
    pub limits: Vec<Limit>,
    /// Work in flight.
    pub concurrency: Option<Arc<ConcurrencyRule>>,
    /// No limit, no counting.
    pub unlimited: bool,
    /// Names of limits of the same request that are dropped when this rule matches.
    pub replaces: Vec<Box<str>>,
    /// Over limit is counted but answered OK.
    pub shadow_mode: bool,
    /// Soft: refused only when all quota descriptors of the request are over.
    pub quota_mode: bool,
    /// The stat path has every level's runtime value.
    pub detailed_metric: bool,
    /// Returned in `dynamic_metadata` when this rule passed.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whose limit this is.
    pub scope: Scope,
    /// No header describes its limits; a refusal by them shows in what only refusals have.
    pub unadvertised: bool,
    /// What a limit that comes with a request means here.
    pub request_limit: RequestLimit,
    /// Where it is written.
    pub source: Source,
}

/// Most limits of a rule: their counters stand side by side, and a decision looks at each.
pub const MOST_LIMITS: usize = 64;

/// What a limit that comes with a request means at a rule (`request_limit:`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestLimit {
    /// As in the reference: a fixed window of the clock in place of the rule's limits.
    #[default]
    Window,
    /// Its numbers in place of those of the rule's single limit; algorithm, anchor, name and unit
    /// of cost stay.
    Numbers,
}

/// Where a rule is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// File name as it was given or found.
    pub file: Arc<str>,
    /// Line of the descriptor, from 1.
    pub line: usize,
    /// Column of the descriptor, from 1.
    pub column: usize,
}

impl Rule {
    /// Requests may have to wait: for a permit, or for a slot of the shaper.
    pub fn may_wait(&self) -> bool {
        self.concurrency.is_some() || self.limits.iter().any(|limit| limit.hold)
    }

    fn is_sliced(&self) -> bool {
        self.limits.iter().any(|limit| limit.slice.is_some())
    }
}

impl Level {
    /// Adds a child; gives it back when the same key and value are there already.
    #[expect(
        clippy::result_large_err,
        reason = "load time only; the node is the message"
    )]
    pub fn insert(&mut self, how: Child, node: Node) -> Result<(), Node> {
        let waits = node.rule.as_ref().is_some_and(|rule| rule.may_wait());
        self.may_wait |= waits || node.children.may_wait;
        let sliced = node.rule.as_ref().is_some_and(|rule| rule.is_sliced());
        self.has_slices |= sliced || node.children.has_slices;
        match how {
            Child::Exact(value) => {
                let values = self.exact.entry(node.key.clone()).or_default();
                if values.contains_key(&value) {
                    return Err(node);
                }
                values.insert(value, node);
            }
            Child::Any => {
                if self.any.contains_key(&node.key) {
                    return Err(node);
                }
                self.any.insert(node.key.clone(), node);
            }
            Child::Pattern(matcher) => {
                if self
                    .patterns
                    .iter()
                    .any(|(_, o)| o.key == node.key && o.value == node.value)
                {
                    return Err(node);
                }
                let place = place_of(&matcher, &self.patterns);
                self.patterns.insert(place, (matcher, node));
            }
        }
        Ok(())
    }

    /// Whether requests may have to wait somewhere below.
    pub const fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Whether some limit below is served in slices.
    pub const fn has_slices(&self) -> bool {
        self.has_slices
    }

    /// Hashes what can be hashed before requests come, here and below; `above` is the hash of all
    /// that leads here.
    pub(super) fn key(&mut self, above: KeyHasher) {
        self.above = Above::All(above);
        for node in self.exact.values_mut().flat_map(HashMap::values_mut) {
            let mut hasher = above;
            let entry = Entry {
                key: &node.key,
                value: &node.value,
            };
            let step = Step {
                node,
                how: How::Exact,
            };
            step.hash(entry, &mut hasher);
            node.children.key(hasher);
        }
        for node in self.any.values_mut() {
            let mut hasher = above;
            hasher.text(&node.key);
            node.children.above = Above::AllButValue(hasher);
        }
    }

    /// Every child, in no particular order.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        let exact = self.exact.values().flat_map(HashMap::values);
        exact
            .chain(self.patterns.iter().map(|(_, node)| node))
            .chain(self.any.values())
    }

    pub(super) fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        let exact = self.exact.values_mut().flat_map(HashMap::values_mut);
        exact
            .chain(self.patterns.iter_mut().map(|(_, node)| node))
            .chain(self.any.values_mut())
    }

    /// Gives every rule below its number, in the order of the files.
    pub(super) fn number(&mut self, rules: &mut Vec<Arc<Rule>>) {
        let mut found = Vec::new();
        self.collect(&mut found);
        found.sort_by(|a, b| a.source.cmp(&b.source));
        for rule in found {
            // The rule of a domain that an earlier set of rules has too is copied here.
            let owned = Arc::make_mut(rule);
            owned.id = u32::try_from(rules.len()).unwrap_or(u32::MAX);
            rules.push(Arc::clone(rule));
        }
    }

    fn collect<'a>(&'a mut self, found: &mut Vec<&'a mut Arc<Rule>>) {
        for node in self.nodes_mut() {
            if let Some(rule) = &mut node.rule {
                found.push(rule);
            }
            node.children.collect(found);
        }
    }
}

/// Networks stand before other patterns, longer prefixes before shorter ones; else file order.
fn place_of(matcher: &Matcher, patterns: &[(Matcher, Node)]) -> usize {
    let Matcher::Network(network) = matcher else {
        return patterns.len();
    };
    let goes_after = |(other, _): &(Matcher, Node)| match other {
        Matcher::Network(other) => other.prefix_len() >= network.prefix_len(),
        _ => false,
    };
    patterns
        .iter()
        .position(|other| !goes_after(other))
        .unwrap_or(patterns.len())
}
