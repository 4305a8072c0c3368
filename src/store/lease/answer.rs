//! The state of items, and the counting of decisions.

use crate::{
    model::lease::Decision,
    store::lease::{
        LeaseBook,
        ask::{Answer, ItemState},
        order::Order,
        short::Short,
    },
};

impl LeaseBook {
    /// An answer with the state of every item.
    pub(super) fn answer(&mut self, decision: Decision, order: &Order) -> Answer {
        let mut answer = Answer::new(decision);
        let (now, earlier) = (self.now, self.earlier);
        for place in &order.places {
            let item = place.and_then(|place| order.items.get(place));
            let counter = item.and_then(|item| self.counters.get_mut(&item.key));
            let state = counter.map_or_else(ItemState::default, |counter| {
                counter.touch(now);
                let limit = counter.limit();
                let is_closed = earlier
                    .is_some_and(|earlier| !earlier.closed_for(&counter.rule, now).is_zero());
                ItemState {
                    limit,
                    in_flight: counter.in_flight,
                    remaining: if is_closed {
                        0
                    } else {
                        limit.saturating_sub(counter.in_flight)
                    },
                    waiters: counter.queue.len(),
                    granted: 0,
                    mean_hold: counter.mean_hold(),
                    throughput: counter.flow.throughput(),
                    ..ItemState::default()
                }
            });
            answer.items.push(state);
        }
        answer
    }

    /// Counts a decision: at the items that were short, else at all.
    pub(super) fn count(&mut self, answer: &Answer, order: &Order, short: &[Short]) {
        self.totals.decided(answer, answer.cause);
        for (place, item) in order.items.iter().enumerate() {
            let is_short = short.iter().find(|short| short.place == place);
            if !short.is_empty() && is_short.is_none() {
                continue;
            }
            let stats = self.counters.get(&item.key).map(|counter| counter.stats);
            if let Some((_, counts)) = stats.and_then(|stats| self.limits.get_mut(stats)) {
                counts.decided(answer, is_short.map(|short| short.cause));
                let shadow = answer
                    .items
                    .iter()
                    .zip(&order.places)
                    .any(|(state, at)| *at == Some(place) && state.shadow_short);
                counts.shadow_refused += u64::from(shadow);
                self.totals.shadow_refused += u64::from(shadow);
            }
        }
    }
}
