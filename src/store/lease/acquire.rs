//! Check, then commit or refuse.

use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::Decision,
        time::{Span, Timestamp},
    },
    store::lease::{
        LeaseBook,
        ask::{Answer, Ask, AskError, Naming, Reply},
        order::{Booking, Order},
        short::Short,
    },
};

/// What a check says.
#[derive(Debug)]
#[must_use]
pub enum Checked {
    /// There is nothing more to decide: replayed, impossible, or joined to one that waits.
    Decided(Reply),
    /// To be committed or refused.
    Open(Box<Plan>),
}

/// A request that was checked. Valid until anything else happens to the book.
#[derive(Debug)]
pub struct Plan {
    pub(super) order: Order,
    pub(super) short: SmallVec<[Short; 2]>,
    pub(super) shadow_short: SmallVec<[CounterKey; 1]>,
    /// How long it may wait.
    pub(super) wait: Span,
    pub(super) returning: Option<Booking>,
    pub(super) dry_run: bool,
}

impl Plan {
    /// Marks the items whose shadow limit was short.
    pub(super) fn mark_shadow(&self, answer: &mut Answer) {
        for (state, place) in answer.items.iter_mut().zip(&self.order.places) {
            let item = place.and_then(|place| self.order.items.get(place));
            state.shadow_short = item.is_some_and(|item| self.shadow_short.contains(&item.key));
        }
    }

    /// Whether every concurrency limit has room.
    pub fn fits(&self) -> bool {
        self.short.is_empty()
    }
}

impl LeaseBook {
    /// A request without rate limits, from turn to answer.
    pub fn acquire(&mut self, ask: &Ask<'_>, now: Timestamp) -> Result<Reply, AskError> {
        self.turn(now, &mut ());
        match self.check(ask, now)? {
            Checked::Decided(reply) => Ok(reply),
            Checked::Open(plan) if plan.fits() => Ok(Reply::Now(Box::new(self.commit(&plan)))),
            Checked::Open(plan) => Ok(self.refuse(*plan, None)),
        }
    }

    /// Looks whether a request can be granted. Nothing is taken; only the demand is noted.
    pub fn check(&mut self, ask: &Ask<'_>, now: Timestamp) -> Result<Checked, AskError> {
        self.advance(now);
        let mut order = Order::new(ask)?;
        if let Some(session) = ask.session
            && self.sessions.leases(session).is_none()
        {
            return Err(AskError::NoSession);
        }
        if let Some(reply) = self.recall(&order, ask) {
            return Ok(Checked::Decided(reply));
        }
        if let Some(answer) = self.impossible(&order, ask) {
            return Ok(decided(answer));
        }
        self.within_bounds(&order)?;
        for item in ask.items {
            let Some(rule) = &item.rule else { continue };
            let now = self.now;
            let counter = self.counter(item.key, rule).ok_or(AskError::BookFull)?;
            counter.touch(now);
            if let Some(hold) = ask.expected_hold {
                counter.expect(hold);
            }
        }
        self.weigh(&mut order, ask);
        if self.draining && order.naming == Naming::Issued {
            let mut answer = self.answer(Decision::Draining, &order);
            answer.shared = true;
            self.count(&answer, &order, &[]);
            return Ok(decided(answer));
        }
        if self.settle_named(&mut order) {
            return Ok(decided(self.replay_named(&order)));
        }
        let returning = self.returning(&order);
        if !ask.dry_run {
            self.note_demand(&order, returning.is_some());
        }
        order.above_share = self.is_above_share(&order);
        order.adopting = ask.adopt.iter().any(|id| id.boot != self.identity.boot);
        let (mut short, shadow_short) = self.shortages(&order);
        if ask.partial && short.len() == 1 && order.items.len() == 1 {
            short.retain(|short| !self.take_fewer(&mut order, *short));
        }
        let wait = self.patience(ask, &order, &short);
        Ok(Checked::Open(Box::new(Plan {
            order,
            short,
            shadow_short,
            wait,
            returning,
            dry_run: ask.dry_run,
        })))
    }

    /// Grants what was checked. It must fit.
    pub fn commit(&mut self, plan: &Plan) -> Answer {
        debug_assert!(plan.fits(), "a plan that is short cannot be committed");
        if plan.dry_run {
            let mut answer = self.answer(Decision::WouldGrant, &plan.order);
            plan.mark_shadow(&mut answer);
            self.count(&answer, &plan.order, &[]);
            return answer;
        }
        let mut answer = self.grant(&plan.order);
        if let Some(booking) = &plan.returning {
            answer.hint_error = Some(self.give_back_slot(booking));
        }
        plan.mark_shadow(&mut answer);
        self.count(&answer, &plan.order, &[]);
        answer
    }

    fn within_bounds(&self, order: &Order) -> Result<(), AskError> {
        if self.records.len() >= self.bounds.leases {
            return Err(AskError::BookFull);
        }
        let holder = &order.holder.id;
        if !holder.is_empty() && self.records.holder(holder).live >= self.bounds.leases_per_holder {
            return Err(AskError::HolderFull);
        }
        let in_session = order
            .session
            .and_then(|session| self.sessions.leases(session));
        if in_session.is_some_and(|leases| leases >= self.bounds.leases_per_session) {
            return Err(AskError::SessionFull);
        }
        Ok(())
    }

    /// Marks the items whose named lease is there already, or was released before it was asked
    /// for. True when a lease is there and nothing else is asked for.
    fn settle_named(&self, order: &mut Order) -> bool {
        let Naming::Named(name) = order.naming else {
            return false;
        };
        let mut held = false;
        for item in &mut order.items {
            let live = self.records.named(item.key, name);
            let live = live.is_some_and(|sequence| self.records.get(sequence).is_some());
            held |= live;
            item.settled = live || self.early.get(&(item.key, name), self.now).is_some();
        }
        held && order.items.iter().all(|item| item.settled)
    }

    /// The booking of a request that was refused before.
    fn returning(&self, order: &Order) -> Option<Booking> {
        self.bookings
            .get(order.request.as_ref()?, self.now)
            .cloned()
    }

    /// λ counts requests, not attempts.
    fn note_demand(&mut self, order: &Order, returning: bool) {
        if returning {
            self.totals.returned += 1;
            return;
        }
        for item in &order.items {
            if let Some(counter) = self.counters.get_mut(&item.key) {
                counter.flow.arrive(item.permits);
                if let (Some(tenants), Some(tenant)) = (&mut counter.tenants, order.tenant) {
                    tenants.arrive(tenant, item.permits, self.now);
                }
            }
        }
    }

    fn is_above_share(&mut self, order: &Order) -> bool {
        let Some(tenant) = order.tenant else {
            return false;
        };
        let mut above = false;
        for item in &order.items {
            if let Some(counter) = self.counters.get_mut(&item.key) {
                let (limit, hold) = (counter.limit(), counter.recent_hold());
                if let Some(tenants) = &mut counter.tenants {
                    above |= tenants.is_above_share(tenant, item.permits, limit, hold, self.now);
                }
            }
        }
        above
    }
}

fn decided(answer: Answer) -> Checked {
    Checked::Decided(Reply::Now(Box::new(answer)))
}
