//! Requests that do not say what they cost, and what they are taken to cost.

use crate::{
    algorithm::concurrency::weight::Costs,
    model::{key::CounterKey, time::Span},
    store::lease::{LeaseBook, ask::Ask, order::Order, record::Held},
};

impl LeaseBook {
    /// Gives the items that do not say how many permits they need the learned number of their key,
    /// where the rule wants that. Never more than the limit lets
    /// through at once: that would be a refusal for ever.
    pub(super) fn weigh(&self, order: &mut Order, ask: &Ask<'_>) {
        let (class, cohort) = (order.class, order.cohort);
        for (index, place) in order.places.iter().enumerate() {
            let says = 1_u32
                .checked_shl(u32::try_from(index).unwrap_or(u32::MAX))
                .is_none_or(|bit| ask.unsaid & bit == 0);
            let item = place.and_then(|place| order.items.get_mut(place));
            let Some(item) = item.filter(|_| !says) else {
                continue;
            };
            let weight = self.weight(item.key).saturating_sub(1);
            let counter = self.counters.get(&item.key);
            let most = counter.map_or(0, |counter| counter.allowed(class, cohort));
            let room = most.saturating_sub(item.permits);
            item.permits = item.permits.saturating_add(weight.min(room));
        }
    }

    /// Permits that a request of this key is taken to need when it does not say.
    pub fn weight(&self, key: CounterKey) -> u64 {
        let Some(counter) = self.counters.get(&key) else {
            return 1;
        };
        let costs = self.costs.get(&counter.stats);
        let learned = costs.zip(counter.cost).zip(counter.rule.most_weight);
        learned.map_or(1, |((costs, cost), max)| costs.weight(cost, max))
    }

    /// Work has ended well and took so long. Without `actual` it needed what its holder had asked
    /// for; a weight that was learned is no evidence, or it would grow by itself.
    pub(super) fn learn_weight(&mut self, part: &Held, service: Span, actual: Option<u64>) {
        let Some(counter) = self.counters.get_mut(&part.key) else {
            return;
        };
        let Some(max) = counter.rule.most_weight else {
            return;
        };
        let permits = actual.unwrap_or_else(|| part.asked.min(part.permits));
        let alpha = counter.rule.estimates.alpha;
        let costs: &mut Costs = self.costs.entry(counter.stats).or_default();
        let seconds = service.as_secs_f64();
        counter.cost = Some(costs.learn(counter.cost, seconds, permits, alpha, max));
    }
}
