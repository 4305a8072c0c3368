//! Permits are taken back: undone, revoked, or no longer waited for.

use std::sync::Arc;

use crate::{
    model::{
        key::CounterKey,
        lease::{EndedBy, LeaseId},
        time::Timestamp,
    },
    rules::concurrency::OnShrink,
    store::lease::{
        Ending, Event, LeaseBook,
        ask::{Naming, Ticket},
        session::SessionId,
        wait::Left,
    },
};

/// Why a grant is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// The caller went away: no release will follow.
    Left,
    /// The answer came too late: the caller went on without it, and a release will follow.
    TimedOut,
}

/// Leases of a session that were taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Which.
    pub leases: Vec<LeaseId>,
    /// By whom.
    pub by: RevokedBy,
    /// The path of the rule that they were taken back for; empty when no single one was.
    pub path: Arc<str>,
}

/// Who took leases back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokedBy {
    /// The limit fell below what was in flight, and its rule revokes then.
    Limit,
    /// An operator.
    Operator,
    /// The shared store no longer has them under this stream's name.
    Store,
}

impl LeaseBook {
    /// Undoes a grant or a replay whose answer never left. A lease lives on while another call
    /// was answered with it; false when one does.
    pub fn undo(&mut self, leases: &[LeaseId], why: Undo, now: Timestamp) -> bool {
        self.advance(now);
        let mut all = true;
        for id in leases {
            if self.records.find(id).is_none() || self.records.disclaim(id.sequence) != Some(0) {
                all = false;
                continue;
            }
            let Some(lease) = self.end(id.sequence, Ending::Undone, self.now) else {
                continue;
            };
            self.totals.cancelled += 1;
            for held in &lease.held {
                let until = self.now + self.marks(held.key).ghost;
                if let Some(counter) = self.counters.get_mut(&held.key) {
                    if let Some((_, counts)) = self.limits.get_mut(counter.stats) {
                        counts.cancelled += 1;
                    }
                    if lease.naming == Naming::Anonymous && why == Undo::TimedOut {
                        counter.add_ghost(until);
                    }
                }
                if let Naming::Named(name) = lease.naming {
                    self.refused.insert((held.key, name), (), until, self.now);
                }
            }
        }
        all
    }

    /// A call no longer waits. False when its answer was told already; then its leases, if any,
    /// have to be undone.
    pub fn leave(&mut self, ticket: Ticket, now: Timestamp) -> bool {
        self.advance(now);
        match self.waiters.leave(ticket) {
            Left::NotWaiting => false,
            Left::OthersWait => true,
            Left::Last(waiter) => {
                self.unpark(&waiter);
                true
            }
        }
    }

    /// Takes a lease back, whoever holds it.
    pub fn revoke(&mut self, id: &LeaseId, now: Timestamp) -> bool {
        self.advance(now);
        let path = Arc::default();
        let by = RevokedBy::Operator;
        self.records.find(id).is_some() && self.revoke_all(&[id.sequence], by, &path) > 0
    }

    pub(super) fn revoke_all(
        &mut self,
        sequences: &[u64],
        who: RevokedBy,
        path: &Arc<str>,
    ) -> usize {
        let mut told: Vec<(SessionId, Vec<LeaseId>)> = Vec::new();
        let mut ended = 0;
        for sequence in sequences {
            let by = Ending::By(EndedBy::Revoked);
            let Some(lease) = self.end(*sequence, by, self.now) else {
                continue;
            };
            ended += 1;
            if let Some(session) = lease.session {
                match told.iter_mut().find(|(known, _)| *known == session) {
                    Some((_, leases)) => leases.push(lease.id),
                    None => told.push((session, vec![lease.id])),
                }
            }
        }
        let events = told.into_iter().map(|(session, leases)| Event::Revoked {
            session,
            revoked: Revoked {
                leases,
                by: who,
                path: Arc::clone(path),
            },
        });
        self.events.extend(events);
        ended
    }

    /// Takes back the newest leases of sessions while more is in flight than the limit allows, if
    /// the rule wants that.
    pub(super) fn shrink(&mut self, key: CounterKey) {
        let Some(counter) = self.counters.get(&key) else {
            return;
        };
        if counter.rule.on_shrink != OnShrink::RevokeNewest {
            return;
        }
        let path = Arc::clone(&counter.rule.path);
        let mut excess = counter.in_flight.saturating_sub(counter.limit());
        let mut candidates: Vec<(u64, u64)> = counter
            .leases
            .iter()
            .map(|((_, sequence), permits)| (*sequence, *permits))
            .collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        let mut newest = Vec::new();
        for (sequence, permits) in candidates {
            let in_session = self
                .records
                .get(sequence)
                .is_some_and(|lease| lease.session.is_some());
            if excess > 0 && in_session {
                excess = excess.saturating_sub(permits);
                newest.push(sequence);
            }
        }
        self.revoke_all(&newest, RevokedBy::Limit, &path);
    }
}
