//! One level of a match: which node an entry chose, and what it adds to the counter's key.

use crate::{
    model::{key::KeyHasher, request::Entry},
    rules::tree::Node,
};

/// How one entry matched.
#[derive(Clone, Copy, Debug)]
pub struct Step<'r> {
    /// The node that was chosen.
    pub node: &'r Node,
    /// Which kind of child it was.
    pub how: How,
}

/// Which kind of child matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Key and value as written.
    Exact,
    /// `*`, `cidr:` or `regex:`.
    Pattern,
    /// The key alone.
    KeyOnly,
}

impl Step<'_> {
    /// Adds what this level contributes to the counter key: the value, the pattern all of whose
    /// values share a counter, or the network of an address.
    pub fn hash(&self, entry: Entry<'_>, hasher: &mut KeyHasher) {
        hasher.text(entry.key);
        self.hash_value(entry, hasher);
    }

    pub(super) fn hash_value(&self, entry: Entry<'_>, hasher: &mut KeyHasher) {
        if self.is_shared() {
            hasher.text(&self.node.value);
        } else if let Some(network) = self.node.mask.and_then(|mask| mask.apply(entry.value)) {
            hasher.text(&network.to_string());
        } else {
            hasher.text(entry.value);
        }
    }

    /// Whether all values that match here share one counter.
    pub fn is_shared(&self) -> bool {
        self.how == How::Pattern && self.node.share_threshold
    }
}
