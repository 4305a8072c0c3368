//! How leases come to their end.

use super::{LeaseBook, REMEMBER_ENDED, event::Event, record::Lease};
use crate::{
    model::{
        lease::{EndedBy, Outcome},
        time::Timestamp,
    },
    rules::concurrency::RefundOn,
};

/// How a lease comes to its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// Its holder gave it back and said what became of the work.
    Returned(Outcome),
    /// As told to whoever asks.
    By(EndedBy),
    /// As if it had never been.
    Undone,
}

impl Ending {
    /// As told to whoever asks; none when it had never been.
    pub(super) const fn by(self) -> Option<EndedBy> {
        match self {
            Self::Returned(_) => Some(EndedBy::Released),
            Self::By(by) => Some(by),
            Self::Undone => None,
        }
    }

    /// Whether rate units are given back. Those of what had never been are given back by whoever
    /// undoes it.
    pub(super) const fn refunds(self, on: RefundOn) -> bool {
        match self {
            Self::Returned(Outcome::Dropped) => on.dropped,
            Self::By(EndedBy::Expired | EndedBy::SessionLost) => on.expired,
            Self::Returned(_) | Self::By(_) | Self::Undone => false,
        }
    }
}

impl LeaseBook {
    /// Ends everything that is due, in the order in which it was due.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        loop {
            let lease = self.records.next_expiry().filter(|(at, _)| *at <= self.now);
            let cut = self.peers.next_due().filter(|(at, _)| *at <= self.now);
            if let Some((at, peer)) = cut
                && lease.is_none_or(|(expires, _)| at < expires)
            {
                // Before what ends later: a cut may make it end sooner.
                self.cut_short(peer, at);
                continue;
            }
            let session = self.sessions.next_end().filter(|(at, _)| *at <= self.now);
            match (lease, session) {
                (Some((at, sequence)), session) if session.is_none_or(|(ends, _)| at <= ends) => {
                    self.end(sequence, Ending::By(EndedBy::Expired), at);
                }
                (_, Some((at, session))) => self.end_session(session, EndedBy::SessionLost, at),
                (_, None) => break,
            }
        }
    }

    /// Ends a lease; `at` may lie before now, when it was not noticed in time.
    pub(super) fn end(&mut self, sequence: u64, ending: Ending, at: Timestamp) -> Option<Lease> {
        let by = ending.by();
        let lease = self
            .records
            .remove(sequence, by == Some(EndedBy::Expired))?;
        for held in &lease.held {
            let Some(counter) = self.counters.get_mut(&held.key) else {
                continue;
            };
            let entry = (lease.expires, sequence);
            counter.give_back(entry, lease.granted, at, lease.tenant, by.is_some());
            if !counter.queue.is_empty() {
                self.ready.push(held.key);
            }
            if let (Some(by), Some((_, counts))) = (by, self.limits.get_mut(counter.stats)) {
                counts.ended(by, self.now.since(at));
            }
        }
        if !lease.refund_on.is_never() {
            self.events.push(Event::RatesSettled {
                lease: lease.id,
                refund: ending.refunds(lease.refund_on),
            });
        }
        if let Some(session) = lease.session {
            self.sessions.remove(session, sequence);
        }
        if let Some(peer) = lease.peer {
            self.peers.remove(peer, sequence);
        }
        match by {
            Some(by) => {
                self.totals.ended(by, self.now.since(at));
                self.remember_ended(&lease, by);
            }
            None => self.records.undo(&lease),
        }
        Some(lease)
    }

    /// The memory of an ended lease counts against its first key, so that it is bounded by what
    /// the limit lets in.
    fn remember_ended(&mut self, lease: &Lease, by: EndedBy) {
        let Some(counter) = lease
            .held
            .first()
            .and_then(|held| self.counters.get_mut(&held.key))
        else {
            self.records.undo(lease);
            return;
        };
        self.records.remember(lease, by, self.now);
        counter.ended.push_back((self.now, lease.id.sequence));
        let most = usize::try_from(counter.limit().saturating_mul(4)).unwrap_or(usize::MAX);
        while let Some((noticed, oldest)) = counter.ended.front().copied() {
            if counter.ended.len() <= most.max(16) && noticed + REMEMBER_ENDED > self.now {
                break;
            }
            counter.ended.pop_front();
            self.records.forget(oldest);
        }
    }
}
