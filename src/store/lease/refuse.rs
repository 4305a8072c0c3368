//! Permits are not taken: wait, or come back.

use rand::RngExt;
use smallvec::SmallVec;

use crate::{
    algorithm::concurrency::hint::VirtualQueue,
    model::{
        key::CounterKey,
        lease::{Cause, Decision},
        time::{Span, Timestamp},
    },
    store::lease::{
        LeaseBook, REMEMBER_SLOT,
        acquire::Plan,
        ask::{Answer, Naming, RateShort, Reply, Ticket},
        order::{Booking, Order},
        queue::Parked,
        record::Known,
        short::Short,
        wait::Waiter,
    },
};

impl LeaseBook {
    /// Refuses what was checked, or lets it wait. `rate` is what a rate limit of the same request
    /// says that is short; then it does not wait.
    pub fn refuse(&mut self, mut plan: Plan, rate: Option<RateShort>) -> Reply {
        let closed = plan.short.iter().any(|short| short.cause == Cause::Restart);
        let mut cause = None;
        if rate.is_none() && !closed && !plan.dry_run && !plan.wait.is_zero() {
            match self.why_not_wait(&plan) {
                None => return Reply::Waits(self.enqueue(plan)),
                Some(why) => cause = Some(why),
            }
        }
        let mut answer = self.refusal(&plan.order, &plan.short, rate);
        plan.mark_shadow(&mut answer);
        if let Some(cause) = cause {
            answer.cause = Some(cause);
            for short in &mut plan.short {
                short.cause = cause;
            }
        }
        if !plan.dry_run {
            self.book(
                &plan.order,
                &plan.short,
                plan.returning.as_ref(),
                &mut answer,
            );
            self.remember_refused(&plan.order);
        }
        self.count(&answer, &plan.order, &plan.short);
        Reply::Now(Box::new(answer))
    }

    /// Why a request that could wait must not.
    pub(super) fn why_not_wait(&self, plan: &Plan) -> Option<Cause> {
        let short = plan.short.first()?;
        let item = plan.order.items.get(short.place)?;
        let counter = self.counters.get(&item.key)?;
        if let Some(deadline) = plan.order.deadline {
            let wait = counter.queue_wait(item.permits, short.allowed);
            let needed = Span::from_secs_f64(wait + counter.mean_hold());
            if self.now + needed > deadline {
                return Some(Cause::Deadline);
            }
        }
        let gives_way = counter
            .queue
            .last()
            .is_some_and(|(rank, _)| rank > plan.order.rank());
        let full = counter.queue.len() >= counter.queue_bound()
            && !(gives_way && counter.queue_bound() > 0);
        (full || self.waiters.len() >= self.bounds.waiters).then_some(Cause::QueueFull)
    }

    /// Parks a request at the first key that is short.
    pub(super) fn enqueue(&mut self, plan: Plan) -> Ticket {
        let ticket = self.waiters.ticket();
        let place = (plan.order.rank(), ticket);
        let item = plan
            .short
            .first()
            .and_then(|short| plan.order.items.get(short.place));
        let key = item.map_or(CounterKey::from_bits(0), |item| item.key);
        self.make_room(key);
        self.totals.waited += 1;
        if let Some(request) = &plan.order.request {
            self.records
                .requests
                .insert(request.clone(), Known::Waits(ticket));
        }
        for item in &plan.order.items {
            let Some(counter) = self.counters.get_mut(&item.key) else {
                continue;
            };
            if let (Some(tenants), Some(tenant)) = (&mut counter.tenants, plan.order.tenant) {
                tenants.wait(tenant, item.permits);
            }
            if item.key == key {
                let parked = Parked {
                    permits: item.permits,
                    since: self.now,
                };
                counter.queue.push(place, parked, self.now);
            }
        }
        self.waiters.insert(Waiter {
            order: plan.order,
            tickets: SmallVec::from_elem(ticket, 1),
            parked: key,
            place,
            since: self.now,
            until: self.now + plan.wait,
        });
        ticket
    }

    /// A refusal in numbers: what is short, why, and when to come back. A cost that a rate limit can
    /// never hold makes it one for ever.
    pub(super) fn refusal(
        &mut self,
        order: &Order,
        short: &[Short],
        rate: Option<RateShort>,
    ) -> Answer {
        let mut answer = self.answer(Decision::Refused, order);
        let mut longest = -1.0;
        for short in short {
            let Some(item) = order.items.get(short.place) else {
                continue;
            };
            let Some(counter) = self.counters.get(&item.key) else {
                continue;
            };
            let wait = if short.cause == Cause::Restart {
                self.closed_for(&counter.rule, self.now).as_secs_f64()
            } else {
                counter.hint(item.permits, short.allowed, self.now)
            };
            let shared = match short.cause {
                Cause::FairShare => false,
                Cause::Concurrency => counter.rule.shared,
                _ => true,
            };
            if wait > longest {
                longest = wait;
                answer.cause = Some(short.cause);
                answer.shared = shared;
            }
            let items = order.places.iter().zip(&mut answer.items).enumerate();
            for (index, (_, state)) in items.filter(|(_, (at, _))| **at == Some(short.place)) {
                answer.limiting.push(index);
                state.cause = Some(short.cause);
                state.retry_after = Some(Span::from_secs_f64(wait.max(1e-3)));
                state.shared = shared;
            }
        }
        answer.limiting.sort_unstable();
        let mut never = false;
        if let Some(rate) = rate {
            never = rate.retry_after.is_none();
            let wait = rate.retry_after.map_or(f64::INFINITY, Span::as_secs_f64);
            if wait > longest {
                longest = wait;
                answer.cause = Some(Cause::Rate);
                answer.shared = rate.shared;
            }
        }
        if never {
            answer.decision = Decision::Never;
        } else {
            let wait = Span::from_secs_f64(longest.max(1e-3));
            answer.retry_after = Some(wait);
            answer.hopeless = order
                .deadline
                .is_some_and(|deadline| self.now + wait > deadline);
        }
        answer
    }

    /// Books a slot, or keeps the one that the request has, and adds the jitter.
    pub(super) fn book(
        &mut self,
        order: &Order,
        short: &[Short],
        returning: Option<&Booking>,
        answer: &mut Answer,
    ) {
        let now = self.now;
        let Some(hint) = answer.retry_after else {
            return;
        };
        let mut told = hint;
        if let Some(booking) = returning
            && booking.slot > now
        {
            told = booking.slot.since(now).max(Span::from_millis(1));
        } else {
            if let Some(booking) = returning {
                answer.hint_error = Some(now.since(booking.told).as_secs_f64());
            }
            self.book_anew(order, short, now + hint);
        }
        let most = self.hint_jitter(order, short);
        let jitter = 1.0 + most * self.random.random::<f64>();
        told = Span::from_secs_f64(told.as_secs_f64() * jitter);
        answer.retry_after = Some(told);
        answer.hopeless = order.deadline.is_some_and(|deadline| now + told > deadline);
    }

    pub(super) fn book_anew(&mut self, order: &Order, short: &[Short], slot: Timestamp) {
        let now = self.now;
        let mut booking = Booking {
            slot,
            booked: SmallVec::new(),
            told: slot,
        };
        for short in short {
            let Some(item) = order.items.get(short.place) else {
                continue;
            };
            let Some(counter) = self.counters.get_mut(&item.key) else {
                continue;
            };
            if counter.rule.hints.booking && counter.limit() > 0 && short.cause != Cause::Restart {
                let gate = counter.gate();
                counter.promised.book(item.permits, gate, now);
                booking
                    .booked
                    .push((item.key, VirtualQueue::length(item.permits, gate)));
            }
        }
        if let Some(request) = &order.request {
            self.bookings
                .insert(request.clone(), booking, slot + REMEMBER_SLOT, now);
        }
    }

    /// The largest jitter of the limits that are short.
    pub(super) fn hint_jitter(&self, order: &Order, short: &[Short]) -> f64 {
        let counters = short.iter().filter_map(|short| {
            let item = order.items.get(short.place)?;
            self.counters.get(&item.key)
        });
        counters
            .map(|counter| counter.rule.hints.jitter)
            .fold(0.0, f64::max)
    }

    /// A release will follow this refusal: it must not be taken for an early one.
    pub(super) fn remember_refused(&mut self, order: &Order) {
        let now = self.now;
        for item in order.items.iter().filter(|item| !item.settled) {
            let until = now + self.marks(item.key).ghost;
            match order.naming {
                Naming::Issued => {}
                Naming::Named(name) => self.refused.insert((item.key, name), (), until, now),
                Naming::Anonymous => {
                    if let Some(counter) = self.counters.get_mut(&item.key) {
                        counter.add_ghost(until);
                    }
                }
            }
        }
    }
}
