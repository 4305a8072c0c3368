//! The turn: what is due ends, and permits go to who waits.

use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::{Cause, Decision},
        time::{Span, Timestamp},
    },
    store::lease::{
        Event, LeaseBook,
        ask::{Answer, RateShort, Ticket},
        counter::Counter,
        queue::Parked,
        record::Known,
        short::Short,
        wait::Waiter,
    },
};

/// The rate limits of requests that wait. They are decided when the permits are there.
pub trait Rates {
    /// Takes what the request of this ticket needs; takes nothing and says why when it is short.
    fn take(&mut self, ticket: Ticket) -> Option<RateShort>;
}

/// No rate limits.
impl Rates for () {
    fn take(&mut self, _: Ticket) -> Option<RateShort> {
        None
    }
}

impl LeaseBook {
    /// Ends every lease and session that is due, refuses who has waited long enough, serves who
    /// can be served. The answers are among the events.
    pub fn turn(&mut self, now: Timestamp, rates: &mut impl Rates) {
        self.advance(now);
        while let Some(waiter) = self.waiters.timed_out(self.now) {
            self.unpark(&waiter);
            self.give_up(&waiter, None, None);
        }
        while let Some(key) = self.ready.pop() {
            self.serve(key, rates);
        }
    }

    /// Serves the queue of a key, in order, while there are permits.
    fn serve(&mut self, key: CounterKey, rates: &mut impl Rates) {
        let mut passed = None;
        while let Some(counter) = self.counters.get(&key) {
            if counter.in_flight >= counter.limit() {
                return;
            }
            let waiting = counter.rule.waiting;
            let newest_first = counter
                .queue
                .is_newest_first(waiting.newest_first, self.now);
            let Some((place, parked)) = counter.queue.after(passed, newest_first) else {
                return;
            };
            let (_, first) = place;
            match self.next_step(key, first) {
                Step::Grant => self.hand_over(first, rates),
                Step::GiveUp(cause) => {
                    if let Some(waiter) = self.waiters.remove(first) {
                        self.unpark(&waiter);
                        self.give_up(&waiter, Some(cause), None);
                    }
                }
                Step::Park(elsewhere) => self.move_to(first, elsewhere),
                Step::Stay => {
                    let patience = waiting.heavy_patience;
                    if patience.is_some_and(|patience| parked.since + patience <= self.now) {
                        return;
                    }
                    passed = Some(place);
                }
            }
        }
    }

    fn next_step(&self, key: CounterKey, first: Ticket) -> Step {
        let Some(waiter) = self.waiters.get(first) else {
            return Step::GiveUp(Cause::Concurrency);
        };
        let order = &waiter.order;
        if order
            .session
            .is_some_and(|session| self.sessions.leases(session).is_none())
        {
            return Step::GiveUp(Cause::Concurrency);
        }
        let hold = self.counters.get(&key).map_or(0.0, Counter::mean_hold);
        if order
            .deadline
            .is_some_and(|deadline| self.now + Span::from_secs_f64(hold) > deadline)
        {
            return Step::GiveUp(Cause::Deadline);
        }
        let mut elsewhere = None;
        for (place, item) in order.items.iter().enumerate() {
            let is_shadow = self
                .counters
                .get(&item.key)
                .is_some_and(|counter| counter.rule.shadow);
            if is_shadow || self.shortage(order, place, item, Some(key)).is_none() {
                continue;
            }
            if item.key == key {
                return Step::Stay;
            }
            elsewhere.get_or_insert(item.key);
        }
        elsewhere.map_or(Step::Grant, Step::Park)
    }

    /// Grants a request that waited, if its rate limits agree.
    fn hand_over(&mut self, first: Ticket, rates: &mut impl Rates) {
        let Some(waiter) = self.waiters.remove(first) else {
            return;
        };
        self.unpark(&waiter);
        if let Some(short) = rates.take(first) {
            self.give_up(&waiter, None, Some(short));
            return;
        }
        let mut answer = self.grant(&waiter.order);
        answer.waited = self.now.since(waiter.since);
        self.count(&answer, &waiter.order, &[]);
        self.settle(&waiter, &answer);
    }

    /// Refuses a request that waited.
    fn give_up(&mut self, waiter: &Waiter, cause: Option<Cause>, rate: Option<RateShort>) {
        let short: SmallVec<[Short; 2]> = waiter
            .order
            .items
            .iter()
            .enumerate()
            .filter_map(|(place, item)| self.shortage(&waiter.order, place, item, None))
            .collect();
        let mut answer = self.refusal(&waiter.order, &short, rate);
        answer.waited = self.now.since(waiter.since);
        answer.cause = cause.or(answer.cause).or(Some(Cause::Concurrency));
        self.book(&waiter.order, &short, None, &mut answer);
        self.remember_refused(&waiter.order);
        self.count(&answer, &waiter.order, &short);
        self.settle(waiter, &answer);
    }

    /// Tells every call that waited for this request.
    fn settle(&mut self, waiter: &Waiter, answer: &Answer) {
        for (place, ticket) in waiter.tickets.iter().enumerate() {
            let mut answer = answer.clone();
            if place > 0 && answer.decision == Decision::Granted {
                answer.decision = Decision::Replayed;
                for lease in &answer.leases {
                    self.records.claim(lease.sequence);
                }
                self.count(&answer, &waiter.order, &[]);
            }
            let answer = Box::new(answer);
            self.events.push(Event::Settled {
                ticket: *ticket,
                answer,
            });
        }
    }

    /// Takes a request that no longer waits out of its queue; who stands behind it may pass.
    pub(super) fn unpark(&mut self, waiter: &Waiter) {
        let (_, first) = waiter.place;
        if let Some(counter) = self.counters.get_mut(&waiter.parked)
            && counter.queue.remove(waiter.place)
            && !counter.queue.is_empty()
        {
            self.ready.push(waiter.parked);
        }
        for item in &waiter.order.items {
            let counter = self.counters.get_mut(&item.key);
            let tenants = counter.and_then(|counter| counter.tenants.as_mut());
            if let (Some(tenants), Some(tenant)) = (tenants, waiter.order.tenant) {
                tenants.stop_waiting(tenant, item.permits);
            }
        }
        if let Some(request) = &waiter.order.request
            && self.records.requests.get(request) == Some(&Known::Waits(first))
        {
            self.records.requests.remove(request);
        }
    }

    /// Parks a waiting request at another key that is short. It keeps its place in time.
    fn move_to(&mut self, first: Ticket, key: CounterKey) {
        let Some(waiter) = self.waiters.get(first) else {
            return;
        };
        let (from, place, since) = (waiter.parked, waiter.place, waiter.since);
        let permits = waiter.order.items.iter().find(|item| item.key == key);
        let permits = permits.map_or(1, |item| item.permits);
        if let Some(counter) = self.counters.get_mut(&from) {
            counter.queue.remove(place);
        }
        if let Some(counter) = self.counters.get_mut(&key) {
            counter
                .queue
                .push(place, Parked { permits, since }, self.now);
        }
        self.waiters.park(first, key);
    }

    /// Makes room in a full queue: the last one gives way. Whether it should was asked before.
    pub(super) fn make_room(&mut self, key: CounterKey) {
        let Some(counter) = self.counters.get(&key) else {
            return;
        };
        if counter.queue.len() < counter.queue_bound() {
            return;
        }
        let last = counter.queue.last();
        if let Some(waiter) = last.and_then(|(_, first)| self.waiters.remove(first)) {
            self.unpark(&waiter);
            self.give_up(&waiter, Some(Cause::QueueFull), None);
        }
    }
}

/// What is done with the next in a queue.
enum Step {
    /// Everything is there.
    Grant,
    /// It is not worth waiting any longer.
    GiveUp(Cause),
    /// Another key is short.
    Park(CounterKey),
    /// Too heavy for what is free.
    Stay,
}
