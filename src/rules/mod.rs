//! Which limits does a request touch, under which keys?
//!
//! [`Rules`] is what [`crate::config`] makes of the rule files: immutable, shared by all workers,
//! swapped as a whole. Looking up costs the depth of a descriptor, not the number of rules.

pub mod answer;
pub mod concurrency;
pub mod inherit;
pub mod limit;
pub mod lookup;
pub mod step;
#[cfg(test)]
pub(crate) mod testing;
pub mod tree;
pub mod tried;
pub mod value;

use std::sync::Arc;

use hashbrown::HashMap;

use crate::{
    model::key::KeyHasher,
    rules::{
        answer::Answer,
        inherit::Past,
        tree::{Level, Rule},
    },
};

/// All domains. Counters live elsewhere and survive a change of rules.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Box<str>, Arc<Domain>>,
    /// Every rule with a limit, in file order; [`Rule::id`] is the index.
    by_id: Vec<Arc<Rule>>,
    /// Limits that earlier rules had; their counters may still be there.
    departed: Vec<Past>,
    /// See [`Rules::may_wait`].
    may_wait: bool,
    /// See [`Rules::revision`].
    revision: Arc<str>,
}

/// One rule tree and how its requests are decided and answered.
#[derive(Clone, Debug)]
pub struct Domain {
    /// What requests call it.
    pub name: Arc<str>,
    /// Whether the charges of a request stand alone or fall together.
    pub stacking: Stacking,
    /// What to answer when the shared store is away.
    pub on_store_failure: OnStoreFailure,
    /// Its counters lie in many slots of a cluster: see [`crate::store::Terms::spread`].
    pub spread: bool,
    /// An Acquire that names something without a rule is refused; else such items are ignored.
    pub refuse_unknown: bool,
    /// The contract with clients.
    pub answer: Answer,
    /// The first level of descriptors.
    pub root: Level,
    /// The files that it is written in.
    pub files: Vec<Arc<str>>,
}

/// Whether the charges of one request stand alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stacking {
    /// Every charge stands for itself, as the reference service does it.
    #[default]
    Independent,
    /// All charges are taken, or none: a request refused by one limit costs nothing at the others.
    AllOrNothing,
}

/// What to answer for a domain when the shared store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The same rules in memory, limits divided by the number of replicas.
    #[default]
    Local,
    /// Everything passes.
    Allow,
    /// Everything is refused.
    Deny,
}

impl OnStoreFailure {
    /// As a rule file writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl Domain {
    /// All its rules, in file order.
    pub fn rules(&self) -> Vec<&Arc<Rule>> {
        fn collect<'r>(level: &'r Level, rules: &mut Vec<&'r Arc<Rule>>) {
            for node in level.nodes() {
                rules.extend(&node.rule);
                collect(&node.children, rules);
            }
        }
        let mut rules = Vec::new();
        collect(&self.root, &mut rules);
        rules.sort_by_key(|rule| rule.id);
        rules
    }

    /// All its rules that limit work in flight, in file order.
    pub fn rules_in_flight(&self) -> Vec<Arc<Rule>> {
        let rules = self.rules().into_iter();
        rules
            .filter(|rule| rule.concurrency.is_some())
            .cloned()
            .collect()
    }
}

impl Rules {
    /// Puts domains together and numbers their rules.
    ///
    /// Two domains of one name: the later one wins; `config` refuses such files before.
    pub fn new(domains: impl IntoIterator<Item = Domain>) -> Self {
        let mut domains: Vec<Domain> = domains.into_iter().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        let mut rules = Vec::new();
        let mut by_name = HashMap::new();
        for mut domain in domains {
            domain.root.number(&mut rules);
            by_name.insert(Box::from(&*domain.name), Arc::new(domain));
        }
        Self {
            may_wait: by_name.values().any(|domain| domain.root.may_wait()),
            domains: by_name,
            by_id: rules,
            departed: Vec::new(),
            revision: Arc::default(),
        }
    }

    /// The same rules, known to come from files with these contents.
    #[must_use]
    pub fn of_revision(mut self, revision: &str) -> Self {
        self.revision = revision.into();
        self
    }

    /// The same rules, for counters that are named by `hasher`: what is the same in the names of all
    /// requests is hashed here and not with each of them. To be called before the rules are shared.
    #[must_use]
    pub fn keyed(mut self, hasher: &KeyHasher) -> Self {
        for domain in self.domains.values_mut() {
            let domain = Arc::make_mut(domain);
            domain.root.key(domain.named(hasher));
        }
        self
    }

    /// Identifies the contents of the files that were loaded last: 16 hex digits, or nothing for
    /// rules that come from no files. A domain that kept its old rules because its new ones were
    /// refused is not what these files say.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Whether requests to some domain may have to wait.
    pub const fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// The domain of that name.
    pub fn domain(&self, name: &str) -> Option<&Arc<Domain>> {
        lookup::by_text(&self.domains, name)
    }

    /// All domains, sorted by name.
    pub fn domains(&self) -> Vec<&Arc<Domain>> {
        let mut domains: Vec<_> = self.domains.values().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        domains
    }

    /// Every rule with a limit, by domain and then in file order; [`Rule::id`] is the index.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.by_id
    }

    /// True when no domain is there.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }
}
