//! A memory that forgets: by time, and the oldest first when it is full.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use crate::model::time::Timestamp;

/// Values that are valid until a time of their own. Never more than `most` of them.
#[derive(Debug)]
pub(super) struct TimedMap<K, V> {
    values: HashMap<K, (Timestamp, V)>,
    /// In the order of insertion; entries that were taken or replaced stay until they are at the
    /// front.
    order: VecDeque<(Timestamp, K)>,
    most: usize,
}

impl<K: Clone + Eq + Hash, V> TimedMap<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            values: HashMap::new(),
            order: VecDeque::new(),
            most,
        }
    }

    /// Remembers `value` until then; replaces what was there.
    pub(super) fn insert(&mut self, key: K, value: V, until: Timestamp, now: Timestamp) {
        self.values.insert(key.clone(), (until, value));
        self.order.push_back((until, key));
        while let Some((until, _)) = self.order.front() {
            let full = self.values.len() > self.most || self.order.len() / 2 > self.most;
            if *until > now && !full {
                break;
            }
            self.forget_oldest();
        }
    }

    pub(super) fn get(&self, key: &K, now: Timestamp) -> Option<&V> {
        let (until, value) = self.values.get(key)?;
        (*until > now).then_some(value)
    }

    pub(super) fn take(&mut self, key: &K, now: Timestamp) -> Option<V> {
        let (until, value) = self.values.remove(key)?;
        (until > now).then_some(value)
    }

    /// Drops what is over. What was inserted behind something longer-lived may stay.
    pub(super) fn purge(&mut self, now: Timestamp) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((until, key)) = self.order.pop_front() else {
            return;
        };
        if self.values.get(&key).is_some_and(|(u, _)| *u == until) {
            self.values.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn it_forgets_by_time_and_when_full() {
        let mut map = TimedMap::new(2);
        map.insert(1, 'a', at(5), at(0));
        assert_eq!(map.get(&1, at(4)), Some(&'a'));
        assert_eq!(map.get(&1, at(5)), None);
        map.insert(2, 'b', at(9), at(1));
        map.insert(3, 'c', at(9), at(2));
        assert_eq!((map.values.len(), map.get(&1, at(2))), (2, None));
        assert_eq!(map.take(&2, at(2)), Some('b'));
        assert_eq!(map.take(&2, at(2)), None);
        map.purge(at(9));
        assert_eq!((map.values.len(), map.order.len()), (0, 0));
    }

    #[test]
    fn values_that_come_and_go_leave_no_trace() {
        let mut map = TimedMap::new(10);
        for n in 0..1_000 {
            map.insert(n % 3, n, at(1_000_000), at(n));
            map.take(&(n % 3), at(n));
        }
        assert!(map.order.len() <= 21 && map.values.is_empty());
    }
}
