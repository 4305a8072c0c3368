//! Permits are taken.

use std::sync::Arc;

use rand::RngExt;
use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::{Decision, LeaseId},
        time::{Span, Timestamp},
    },
    rules::concurrency::RefundOn,
    store::lease::{
        LeaseBook,
        ask::{Answer, Naming},
        order::{Booking, Order},
        record::{Held, Lease},
    },
};

impl LeaseBook {
    /// Takes the permits.
    pub(super) fn grant(&mut self, order: &Order) -> Answer {
        let now = self.now;
        let latest = now + order.max_lifetime;
        // The stream keeps a lease alive; only the maximum lifetime bounds it.
        let expires = if order.session.is_some() {
            latest
        } else {
            now + order.ttl
        };
        let mut leases: SmallVec<[LeaseId; 1]> = SmallVec::new();
        let mut held: SmallVec<[Held; 2]> = SmallVec::new();
        for item in order.items.iter().filter(|item| !item.settled) {
            if let Naming::Named(name) = order.naming
                && (self.early.take(&(item.key, name), now).is_some()
                    || self.claim_named(item.key, name, &mut leases))
            {
                continue;
            }
            let Some(counter) = self.counters.get_mut(&item.key) else {
                continue;
            };
            counter.touch(now);
            held.push(Held {
                key: item.key,
                permits: item.permits,
                asked: item.asked,
                in_flight: counter.in_flight.saturating_add(item.permits),
            });
            if order.naming != Naming::Issued {
                let one = std::mem::take(&mut held);
                leases.push(self.enter(order, one, expires, latest));
            }
        }
        for item in order.items.iter().filter(|item| item.settled) {
            if let Naming::Named(name) = order.naming {
                self.early.take(&(item.key, name), now);
            }
        }
        if !held.is_empty() {
            leases.push(self.enter(order, held, expires, latest));
        }
        let mut answer = self.answer(Decision::Granted, order);
        for (state, place) in answer.items.iter_mut().zip(&order.places) {
            let item = place.and_then(|place| order.items.get(place));
            let taken = item.filter(|item| !item.settled);
            state.granted = taken.map_or(0, |item| item.permits);
        }
        if !leases.is_empty() {
            answer.fence = self.fence + self.sequence;
            answer.expires_in = order.ttl;
            answer.renew_after = self.renew_after(order.ttl);
        }
        answer.rates_hang_on = self.refundable(&leases);
        answer.leases = leases;
        answer
    }

    /// The first of these new leases whose rules give rate units back: those of the whole request
    /// hang on it.
    fn refundable(&mut self, leases: &[LeaseId]) -> Option<LeaseId> {
        leases.iter().copied().find(|id| {
            // One that was there before is somebody else's grant.
            let Some(lease) = self.records.get_mut(id.sequence).filter(|l| l.claims == 1) else {
                return false;
            };
            let rules = lease
                .held
                .iter()
                .filter_map(|held| self.counters.get(&held.key));
            lease.refund_on = rules
                .map(|counter| counter.rule.refund_on)
                .fold(RefundOn::default(), RefundOn::or);
            !lease.refund_on.is_never()
        })
    }

    /// While this request waited, another one of the same name may have got the lease: it is shared.
    fn claim_named(
        &mut self,
        key: CounterKey,
        name: CounterKey,
        leases: &mut SmallVec<[LeaseId; 1]>,
    ) -> bool {
        let known = self.records.named(key, name);
        let live = known
            .and_then(|sequence| self.records.get(sequence))
            .map(|lease| lease.id);
        if let Some(id) = live {
            self.records.claim(id.sequence);
            leases.push(id);
        }
        live.is_some()
    }

    /// Makes a lease and counts it in all its keys.
    pub(super) fn enter(
        &mut self,
        order: &Order,
        held: SmallVec<[Held; 2]>,
        expires: Timestamp,
        latest: Timestamp,
    ) -> LeaseId {
        self.sequence += 1;
        let sequence = self.sequence;
        let id = LeaseId {
            boot: self.identity.boot,
            book: self.identity.book,
            sequence,
            secret: self.random.random::<u64>() & LeaseId::MAX_PART,
        };
        for held in &held {
            if let Some(counter) = self.counters.get_mut(&held.key) {
                counter.take(sequence, expires, held.permits, order.tenant);
                if order.naming == Naming::Anonymous {
                    counter.anonymous.insert(sequence);
                }
            }
        }
        if let Some(session) = order.session {
            self.sessions.add(session, sequence);
        }
        let after = held
            .first()
            .and_then(|held| self.counters.get(&held.key)?.rule.gone.after);
        let peer = order.peer.filter(|_| after.is_some());
        if let (Some(peer), Some(after)) = (peer, after) {
            self.peers.add(peer, sequence, after);
        }
        self.records.insert(Lease {
            id,
            holder: self.records.share(&order.holder.id),
            instance: Arc::clone(&order.holder.instance),
            held,
            granted: self.now,
            expires,
            latest,
            request: order
                .request
                .clone()
                .filter(|_| order.naming == Naming::Issued),
            naming: order.naming,
            session: order.session,
            peer,
            tenant: order.tenant,
            refund_on: RefundOn::default(),
            earlier: Span::ZERO,
            claims: 1,
        });
        id
    }

    /// Half of the life, ± 10 %, so that holders do not renew in step.
    pub(super) fn renew_after(&mut self, life: Span) -> Span {
        let part = 0.45 + 0.1 * self.random.random::<f64>();
        Span::from_secs_f64(life.as_secs_f64() * part)
    }

    /// Moves the expiry of a lease, everywhere.
    pub(super) fn move_expiry(&mut self, sequence: u64, expires: Timestamp) {
        let Some(before) = self.records.set_expiry(sequence, expires) else {
            return;
        };
        let Some(lease) = self.records.get(sequence) else {
            return;
        };
        for held in &lease.held {
            if let Some(counter) = self.counters.get_mut(&held.key) {
                counter.renew(sequence, before, expires);
            }
        }
    }

    /// A request that had a slot is granted: what it had booked and did not need is free again.
    /// Gives back how much later than told it came.
    pub(super) fn give_back_slot(&mut self, booking: &Booking) -> f64 {
        let now = self.now;
        if booking.slot <= now {
            return now.since(booking.told).as_secs_f64();
        }
        for (key, length) in &booking.booked {
            if let Some(counter) = self.counters.get_mut(key) {
                counter.promised.give_back(*length, now);
            }
        }
        -booking.told.since(now).as_secs_f64()
    }
}
