//! What does not fit, and why.

use smallvec::SmallVec;

use crate::{
    model::{key::CounterKey, lease::Cause, time::Span},
    rules::concurrency::Shedding,
    store::lease::{
        LeaseBook,
        ask::Ask,
        counter::Counter,
        order::{Order, OrderItem},
    },
};

/// An item that does not fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    /// Place in the order.
    pub(super) place: usize,
    pub(super) cause: Cause,
    /// Permits that the request's class may fill.
    pub(super) allowed: u64,
}

impl LeaseBook {
    /// Items that do not fit, those of shadow limits apart.
    pub(super) fn shortages(
        &self,
        order: &Order,
    ) -> (SmallVec<[Short; 2]>, SmallVec<[CounterKey; 1]>) {
        let mut short = SmallVec::new();
        let mut shadow = SmallVec::new();
        for (place, item) in order.items.iter().enumerate() {
            let Some(found) = self.shortage(order, place, item, None) else {
                continue;
            };
            let counter = self.counters.get(&item.key);
            if counter.is_some_and(|counter| counter.rule.shadow) {
                shadow.push(item.key);
            } else {
                short.push(found);
            }
        }
        (short, shadow)
    }

    /// Why an item does not fit, if so. `served` is the key whose queue is being served: nobody
    /// in it overtakes anybody.
    pub(super) fn shortage(
        &self,
        order: &Order,
        place: usize,
        item: &OrderItem,
        served: Option<CounterKey>,
    ) -> Option<Short> {
        if item.settled {
            return None;
        }
        let counter = self.counters.get(&item.key)?;
        let allowed = counter.allowed(order.class, order.cohort);
        let limit = counter.limit();
        let wanted = counter.in_flight.saturating_add(item.permits);
        let short = |cause| {
            Some(Short {
                place,
                cause,
                allowed,
            })
        };
        if self.is_closed(counter) && !order.adopting {
            return short(Cause::Restart);
        }
        let patience = counter.rule.waiting.heavy_patience;
        let rank = order.rank();
        let overtakes = served != Some(item.key) && counter.queue.blocks(rank, patience, self.now);
        if limit > 0 && wanted <= allowed && !overtakes {
            return None;
        }
        short(if order.above_share && counter.tenants.is_some() {
            Cause::FairShare
        } else if limit > 0 && wanted <= allowed {
            // It would fit, but somebody is in front of it.
            let class = counter.queue.blocks(rank, None, self.now);
            if class {
                Cause::ShedCriticality
            } else {
                Cause::Concurrency
            }
        } else if limit > 0 && wanted <= limit {
            Cause::ShedCriticality
        } else if counter.rule.limit.adapts() {
            Cause::ShedAdaptive
        } else {
            Cause::Concurrency
        })
    }

    /// Fewer permits than asked for, if enough are free.
    pub(super) fn take_fewer(&self, order: &mut Order, short: Short) -> bool {
        let Some(item) = order.items.get(short.place) else {
            return false;
        };
        let Some(counter) = self.counters.get(&item.key) else {
            return false;
        };
        let free = short.allowed.saturating_sub(counter.in_flight);
        let fewer = OrderItem {
            permits: free,
            ..*item
        };
        if free < item.least || self.shortage(order, short.place, &fewer, None).is_some() {
            return false;
        }
        if let Some(item) = order.items.get_mut(short.place) {
            item.permits = free;
        }
        true
    }

    /// How long a request may wait: what it says or the rules of what is short, more when it is
    /// below its share or everybody waits by priority.
    pub(super) fn patience(&self, ask: &Ask<'_>, order: &Order, short: &[Short]) -> Span {
        let mut wait = ask.max_wait.unwrap_or(Span::ZERO);
        if short.iter().any(|short| short.cause == Cause::Restart) {
            // The hint is exact, and no permit that comes back ends it.
            return Span::ZERO;
        }
        for short in short {
            let item = order.items.get(short.place);
            let Some(counter) = item.and_then(|item| self.counters.get(&item.key)) else {
                continue;
            };
            let rule = &counter.rule;
            if ask.max_wait.is_none() {
                wait = wait.max(rule.waiting.max_wait);
            }
            if let (Some(fair), false) = (rule.waiting.under_share_wait, order.above_share) {
                wait = wait.max(fair);
            }
            if let Shedding::PriorityWait(priority) = rule.shedding {
                wait = wait.max(priority);
            }
        }
        wait.min(ask.wait_cap)
    }

    /// Whether nothing may be granted yet after a restart.
    fn is_closed(&self, counter: &Counter) -> bool {
        !self.closed_for(&counter.rule, self.now).is_zero()
    }
}
