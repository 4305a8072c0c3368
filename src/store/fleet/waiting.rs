//! Requests of this process that wait for permits of a shared limit.
//!
//! Per key they stand in one queue, by rank and then first come first served; only the first of it
//! asks the store. It asks again when a permit of the key is given back here, and else about as
//! often as permits come back at all: so a key that is waited for costs the store a bounded number
//! of calls however many wait, nothing has to be subscribed to, and no message can be missed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    model::{key::CounterKey, time::Span},
    store::lease::Rank,
};

/// Shortest and longest pause between two questions about a key.
const SHORTEST: Span = Span::from_millis(5);
const LONGEST: Span = Span::from_millis(50);

/// All queues of a domain.
#[derive(Debug, Default)]
pub(super) struct Queues {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_key: HashMap<CounterKey, BTreeMap<(Rank, u64), Arc<Notify>>>,
    waiting: usize,
    issued: u64,
}

/// A place in a queue. Dropped, it is free, and the next one is called.
#[derive(Debug)]
pub(super) struct Place {
    queues: Arc<Queues>,
    key: CounterKey,
    rank: (Rank, u64),
    called: Arc<Notify>,
}

impl Queues {
    /// A place behind those of the same rank; none when `most` wait for the key already, or
    /// `most_of_all` for any.
    pub(super) fn enter(
        self: &Arc<Self>,
        key: CounterKey,
        rank: Rank,
        most: u64,
        most_of_all: usize,
    ) -> Option<Place> {
        let mut inner = self.inner.lock();
        if inner.waiting >= most_of_all {
            return None;
        }
        let number = inner.issued;
        let length = inner.by_key.get(&key).map_or(0, BTreeMap::len);
        if length as u64 >= most {
            return None;
        }
        inner.issued += 1;
        inner.waiting += 1;
        let place = (rank, number);
        let called = Arc::new(Notify::new());
        let queue = inner.by_key.entry(key).or_default();
        queue.insert(place, Arc::clone(&called));
        Some(Place {
            queues: Arc::clone(self),
            key,
            rank: place,
            called,
        })
    }

    /// How many wait for a key.
    pub(super) fn waiting_for(&self, key: CounterKey) -> u64 {
        let inner = self.inner.lock();
        inner.by_key.get(&key).map_or(0, |queue| queue.len() as u64)
    }

    /// A permit of the key may be free.
    pub(super) fn call(&self, key: CounterKey) {
        let inner = self.inner.lock();
        let first = inner.by_key.get(&key).and_then(BTreeMap::first_key_value);
        if let Some((_, called)) = first {
            called.notify_one();
        }
    }
}

impl Place {
    /// Whether it is this one's turn to ask.
    pub(super) fn is_first(&self) -> bool {
        let inner = self.queues.inner.lock();
        let queue = inner.by_key.get(&self.key);
        queue.is_some_and(|queue| queue.keys().next() == Some(&self.rank))
    }

    /// Resolves when it is time to ask, or to see whether it is.
    pub(super) async fn called(&self) {
        self.called.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.queues.inner.lock();
        inner.waiting = inner.waiting.saturating_sub(1);
        let Some(queue) = inner.by_key.get_mut(&self.key) else {
            return;
        };
        queue.remove(&self.rank);
        match queue.first_key_value() {
            Some((_, next)) => next.notify_one(),
            None => drop(inner.by_key.remove(&self.key)),
        }
    }
}

/// Pause between two questions about a limit that gives a permit back every `pace` seconds.
pub(super) fn pause(pace: f64) -> Span {
    Span::from_secs_f64(pace).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bits: u128) -> CounterKey {
        CounterKey::from_bits(bits)
    }

    fn rank(class: crate::model::lease::Criticality) -> Rank {
        Rank::of(class, false)
    }

    #[test]
    fn one_at_a_time_by_rank_and_then_in_order() {
        use crate::model::lease::Criticality::{Critical, Sheddable};
        let queues = Arc::new(Queues::default());
        let enter = |class| queues.enter(key(1), rank(class), 3, 10);
        let low = enter(Sheddable).unwrap();
        assert!(low.is_first());
        let (one, two) = (enter(Critical).unwrap(), enter(Critical).unwrap());
        assert!(one.is_first() && !two.is_first() && !low.is_first());
        assert!(enter(Critical).is_none(), "the queue is full");
        assert!(queues.enter(key(2), rank(Critical), 3, 3).is_none());
        drop(one);
        assert!(two.is_first());
        drop(two);
        assert!(low.is_first());
        drop(low);
        assert_eq!(queues.waiting_for(key(1)), 0);
        assert!(queues.inner.lock().by_key.is_empty());
    }

    #[tokio::test]
    async fn the_next_one_is_called() {
        use crate::model::lease::Criticality::Critical;
        let queues = Arc::new(Queues::default());
        let enter = || queues.enter(key(1), rank(Critical), 3, 10).unwrap();
        let (one, two) = (enter(), enter());
        queues.call(key(1));
        one.called().await;
        drop(one);
        two.called().await;
        assert!(two.is_first());
    }
}
