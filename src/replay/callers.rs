//! Who was refused most, in bounded memory.

use std::collections::HashMap;

use crate::{
    model::{notation, time::Timestamp},
    replay::decision::Decision,
    trace::record::Record,
};

/// Callers of whom refusals are counted one by one.
pub const MOST: usize = 10_000;

/// Counts refusals per limit and descriptor. When there are more callers than it keeps, the median
/// count is taken off all of them and who has nothing left is dropped (J. Misra, D. Gries, "Finding
/// repeated elements", 1982; in batches as D. Anderson et al., "A high-performance algorithm for
/// identifying frequent items in data streams", 2017): nobody who was refused more often than
/// [`Callers::error`] times is lost.
#[derive(Debug)]
pub struct Callers {
    most: usize,
    counts: HashMap<Box<str>, Refused>,
    error: u64,
    name: String,
}

/// The refusals of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How many there were; with [`Callers::error`] taken off where callers had to be dropped.
    pub count: u64,
    /// Time of the first one counted.
    pub first: Timestamp,
    /// Time of the last.
    pub last: Timestamp,
}

impl Callers {
    /// Keeps at most this many callers.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(2),
            counts: HashMap::new(),
            error: 0,
            name: String::new(),
        }
    }

    /// Counts a refusal for every limit that was over.
    pub fn add(&mut self, decision: &Decision<'_>, record: &Record) {
        for over in decision.over() {
            self.name.clear();
            let path = over
                .rule
                .map_or("(limit of the request)", |rule| &rule.path);
            self.name.push_str(path);
            if let Some(name) = &over.limit.name {
                self.name.extend([" ", name]);
            }
            self.name.push('\t');
            if let Some(descriptor) = decision.request.descriptors.get(over.descriptor) {
                notation::write(decision.request.entries(descriptor), &mut self.name);
            }
            self.count(record.time);
        }
    }

    fn count(&mut self, time: Timestamp) {
        if let Some(refused) = self.counts.get_mut(self.name.as_str()) {
            refused.count += 1;
            refused.last = time;
            return;
        }
        if self.counts.len() >= self.most {
            self.shrink();
        }
        let refused = Refused {
            count: 1,
            first: time,
            last: time,
        };
        self.counts.insert(Box::from(self.name.as_str()), refused);
    }

    fn shrink(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().map(|refused| refused.count).collect();
        let middle = counts.len() / 2;
        let (_, median, _) = counts.select_nth_unstable(middle);
        let median = *median;
        self.error += median;
        self.counts.retain(|_, refused| {
            refused.count = refused.count.saturating_sub(median);
            refused.count > 0
        });
    }

    /// By how much a count may be too low; 0 while no caller was dropped.
    pub fn error(&self) -> u64 {
        self.error
    }

    /// The most refused callers as (limit, descriptor, refusals), most refusals first.
    pub fn top(&self, most: usize) -> Vec<(&str, &str, Refused)> {
        let all = self.counts.iter();
        let mut all: Vec<_> = all.map(|(name, refused)| (&**name, *refused)).collect();
        all.sort_by_key(|(name, refused)| (std::cmp::Reverse(refused.count), *name));
        all.truncate(most);
        let split = all.into_iter().map(|(name, refused)| {
            let (limit, descriptor) = name.split_once('\t').unwrap_or((name, ""));
            (limit, descriptor, refused)
        });
        split.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(callers: &mut Callers, name: &str) {
        callers.name = format!("limit\t{name}");
        callers.count(Timestamp::ZERO);
    }

    #[test]
    fn the_most_refused_come_first() {
        let mut callers = Callers::new(10);
        for name in ["b", "a", "b", "c", "b", "a"] {
            count(&mut callers, name);
        }
        let top: Vec<_> = callers
            .top(2)
            .iter()
            .map(|(_, who, n)| (*who, n.count))
            .collect();
        assert_eq!(top, [("b", 3), ("a", 2)]);
        assert_eq!(callers.error(), 0);
    }

    #[test]
    fn a_flood_of_callers_seen_once_does_not_hide_the_loud_one() {
        let mut callers = Callers::new(100);
        for round in 0..10_000 {
            count(&mut callers, &format!("once-{round}"));
            if round % 20 == 0 {
                count(&mut callers, "loud");
            }
        }
        assert!(callers.counts.len() <= 100);
        let (_, who, refused) = callers.top(1)[0];
        assert_eq!(who, "loud");
        assert!(refused.count <= 500 && refused.count + callers.error() >= 500);
    }
}
