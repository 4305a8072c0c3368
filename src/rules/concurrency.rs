//! A limit on work in flight, as a rule states it.

use std::sync::Arc;

/// `concurrency:` of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyRule {
    /// What refusals call it.
    pub name: Option<Arc<str>>,
    /// Permits.
    pub limit: u64,
}
