//! What happened to each limit of a book, by the path of its rule.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    rules::concurrency::ConcurrencyRule,
    store::lease::{Counts, LeaseBook},
};

impl LeaseBook {
    /// The index of a limit's counts; see [`LeaseBook::limits`].
    pub(super) fn stats_of(&mut self, path: &Arc<str>) -> usize {
        let found = self.limits.iter().position(|(known, _)| known == path);
        found.unwrap_or_else(|| {
            self.limits.push((Arc::clone(path), Counts::default()));
            self.limits.len() - 1
        })
    }

    /// Drops the counts of limits that have neither a rule nor a key any more, beyond
    /// [`Bounds::limits`](super::Bounds::limits) of them: first those that came first.
    pub(super) fn forget_limits(&mut self, rule_of: impl Fn(&str) -> Option<Arc<ConcurrencyRule>>) {
        if self.limits.len() <= self.bounds.limits {
            return;
        }
        let counters = self.counters.values();
        let used: HashSet<usize> = counters.map(|counter| counter.stats).collect();
        let is_gone = |(index, (path, _)): &(usize, &(Arc<str>, Counts))| {
            !used.contains(index) && rule_of(path).is_none()
        };
        let gone = self.limits.iter().enumerate().filter(is_gone);
        let mut gone: Vec<usize> = gone.map(|(index, _)| index).collect();
        gone.truncate(gone.len().saturating_sub(self.bounds.limits));
        if gone.is_empty() {
            return;
        }
        let gone: HashSet<usize> = gone.into_iter().collect();
        let kept = (0..self.limits.len()).filter(|index| !gone.contains(index));
        let moved: HashMap<usize, usize> = kept.zip(0..).collect();
        let mut index = 0..;
        self.limits
            .retain(|_| index.next().is_some_and(|index| moved.contains_key(&index)));
        for counter in self.counters.values_mut() {
            if let Some(to) = moved.get(&counter.stats) {
                counter.stats = *to;
            }
        }
        let costs = std::mem::take(&mut self.costs).into_iter();
        self.costs = costs
            .filter_map(|(index, costs)| Some((*moved.get(&index)?, costs)))
            .collect();
    }
}
