//! Requests that need no decision: known ones, and those that no waiting helps.

use crate::{
    model::{
        lease::{Decision, LeaseId},
        time::Span,
    },
    store::lease::{
        LeaseBook, REMEMBER_ENDED,
        ask::{Answer, Ask, Naming, Reply},
        order::Order,
        record::Known,
    },
};

impl LeaseBook {
    /// What is known of the same request: that decides at once.
    pub(super) fn recall(&mut self, order: &Order, ask: &Ask<'_>) -> Option<Reply> {
        if order.naming != Naming::Issued {
            return None;
        }
        let known = order
            .request
            .as_ref()
            .and_then(|key| self.records.requests.get(key))
            .copied();
        match known {
            Some(Known::Lease(sequence)) => {
                if let Some(lease) = self.records.get(sequence) {
                    let same = order.asks_for(&lease.held);
                    return Some(self.replay(order, sequence, same, ask.dry_run));
                }
                if let Some(answer) = self.recall_ended(sequence, order) {
                    return Some(Reply::Now(Box::new(answer)));
                }
                self.records.forget(sequence);
            }
            Some(Known::Waits(first)) if !ask.dry_run => {
                let same = self
                    .waiters
                    .get(first)
                    .map(|waiter| order.asks_as(&waiter.order))?;
                if !same {
                    return Some(self.conflict(order));
                }
                let wait = ask.max_wait.unwrap_or(Span::ZERO).min(ask.wait_cap);
                return self.waiters.join(first, self.now + wait).map(Reply::Waits);
            }
            _ => {}
        }
        self.adopt(order, ask)
    }

    pub(super) fn recall_ended(&mut self, sequence: u64, order: &Order) -> Option<Answer> {
        let ended = self.records.ended(sequence)?;
        if ended.noticed + REMEMBER_ENDED <= self.now {
            return None;
        }
        let (by, id) = (ended.by, ended.id);
        let mut answer = Answer::new(Decision::Ended(by));
        answer.leases.push(id);
        self.count(&answer, order, &[]);
        Some(answer)
    }

    /// A lease that the caller still holds, taken over into its session.
    pub(super) fn adopt(&mut self, order: &Order, ask: &Ask<'_>) -> Option<Reply> {
        let mine = |id: &LeaseId| {
            let lease = self.records.find(id)?;
            let same = lease.holder == order.holder.id && order.asks_for(&lease.held);
            (same && lease.naming == Naming::Issued).then_some((id.sequence, lease.session))
        };
        let (sequence, before) = ask.adopt.iter().find_map(mine)?;
        if !ask.dry_run && before != ask.session {
            if let Some(before) = before {
                self.sessions.remove(before, sequence);
            }
            self.records.set_session(sequence, ask.session);
            if let Some(session) = ask.session {
                self.sessions.add(session, sequence);
            }
            self.set_expiry(sequence, order);
        }
        Some(self.replay(order, sequence, true, ask.dry_run))
    }

    /// A lease that changed from one session to another, or to none, gets a fresh life.
    pub(super) fn set_expiry(&mut self, sequence: u64, order: &Order) {
        let Some(lease) = self.records.get(sequence) else {
            return;
        };
        let expires = match order.session {
            Some(_) => lease.latest,
            None => (self.now + order.ttl).min(lease.latest),
        };
        self.move_expiry(sequence, expires);
    }

    pub(super) fn replay(
        &mut self,
        order: &Order,
        sequence: u64,
        same: bool,
        dry_run: bool,
    ) -> Reply {
        if !same {
            return self.conflict(order);
        }
        if !dry_run {
            self.records.claim(sequence);
        }
        let mut answer = self.answer(Decision::Replayed, order);
        if let Some(lease) = self.records.get(sequence) {
            answer.leases.push(lease.id);
            answer.fence = self.fence + sequence;
            answer.expires_in = lease.expires.since(self.now);
            for (state, place) in answer.items.iter_mut().zip(&order.places) {
                let held = place.and_then(|place| lease.held.get(place));
                state.granted = held.map_or(0, |held| held.permits);
            }
        }
        answer.renew_after = self.renew_after(answer.expires_in);
        self.count(&answer, order, &[]);
        Reply::Now(Box::new(answer))
    }

    pub(super) fn conflict(&mut self, order: &Order) -> Reply {
        let answer = Answer::new(Decision::Conflict);
        self.count(&answer, order, &[]);
        Reply::Now(Box::new(answer))
    }

    /// Items that no waiting helps: without a rule, or beyond what the limit can ever be.
    pub(super) fn impossible(&mut self, order: &Order, ask: &Ask<'_>) -> Option<Answer> {
        let decision = |place: usize| {
            let item = ask.items.get(place)?;
            let Some(rule) = &item.rule else {
                return ask.refuse_unknown.then_some(Decision::UnknownKey);
            };
            let wanted = order.places.get(place).copied().flatten();
            let wanted = wanted.and_then(|place| order.items.get(place))?;
            let permits = if ask.partial {
                wanted.least
            } else {
                wanted.permits
            };
            // A limit of 0 is switched off for now, and a shadow limit only looks on.
            let most = rule.limit.most();
            (permits > most && most > 0 && !rule.shadow).then_some(Decision::Never)
        };
        let (offender, decision) =
            (0..ask.items.len()).find_map(|place| Some((place, decision(place)?)))?;
        let mut answer = self.answer(decision, order);
        answer.offender = Some(offender);
        self.count(&answer, order, &[]);
        Some(answer)
    }

    pub(super) fn replay_named(&mut self, order: &Order) -> Answer {
        let mut answer = self.answer(Decision::Replayed, order);
        if let Naming::Named(name) = order.naming {
            for item in &order.items {
                let live = self.records.named(item.key, name);
                if let Some(lease) = live.and_then(|sequence| self.records.get(sequence)) {
                    answer.leases.push(lease.id);
                    answer.expires_in = lease.expires.since(self.now);
                }
            }
        }
        for lease in &answer.leases {
            self.records.claim(lease.sequence);
        }
        self.count(&answer, order, &[]);
        answer
    }
}
