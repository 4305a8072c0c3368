//! Leases of peers whose connections are gone.
//!
//! A proxy keeps a connection open while it lives. When the last one is gone and none comes back,
//! the proxy has probably died, and the releases of its requests will not come: what is left of
//! their TTL is cut. It is a guess. A wrong cut costs the rest of the TTL, and a release that comes
//! after it is told that it was late.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::{
    model::{
        lease::Peer,
        time::{Span, Timestamp},
    },
    rules::concurrency::Gone,
    store::lease::LeaseBook,
};

/// Peers that have leases, and since when those without connections have none.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_peer: HashMap<Peer, Holding>,
    /// When the leases of which peer are looked at.
    due: BTreeSet<(Timestamp, Peer)>,
}

/// The leases of a peer that may be cut.
#[derive(Debug)]
struct Holding {
    leases: HashSet<u64>,
    /// The shortest [`Gone::after`] of any lease that it had.
    soonest: Span,
    /// Since when it has no connection, and when its leases are looked at for that.
    gone: Option<(Timestamp, Timestamp)>,
}

impl Peers {
    /// A lease that is cut when its peer is gone for `after`.
    pub(super) fn add(&mut self, peer: Peer, lease: u64, after: Span) {
        let holding = self.by_peer.entry(peer).or_insert_with(|| Holding {
            leases: HashSet::new(),
            soonest: after,
            gone: None,
        });
        holding.leases.insert(lease);
        holding.soonest = holding.soonest.min(after);
    }

    /// A lease ended, or was cut.
    pub(super) fn remove(&mut self, peer: Peer, lease: u64) {
        let Some(holding) = self.by_peer.get_mut(&peer) else {
            return;
        };
        holding.leases.remove(&lease);
        if holding.leases.is_empty() {
            self.back(peer);
            self.by_peer.remove(&peer);
        }
    }

    /// When leases have to be looked at next, and of whom.
    pub(super) fn next_due(&self) -> Option<(Timestamp, Peer)> {
        self.due.first().copied()
    }

    fn gone(&mut self, peer: Peer, since: Timestamp) {
        let Some(holding) = self.by_peer.get_mut(&peer) else {
            return;
        };
        if holding.gone.is_none() {
            let due = since + holding.soonest;
            holding.gone = Some((since, due));
            self.due.insert((due, peer));
        }
    }

    fn back(&mut self, peer: Peer) {
        let gone = self.by_peer.get_mut(&peer).map(|known| known.gone.take());
        if let Some((_, due)) = gone.flatten() {
            self.due.remove(&(due, peer));
        }
    }

    /// Its leases are looked at again at another time, or not at all.
    fn look_again(&mut self, peer: Peer, next: Option<Timestamp>) {
        let Some(holding) = self.by_peer.get_mut(&peer) else {
            return;
        };
        let Some((_, due)) = &mut holding.gone else {
            return;
        };
        self.due.remove(&(*due, peer));
        if let Some(next) = next {
            *due = next;
            self.due.insert((next, peer));
        }
    }
}

impl LeaseBook {
    /// The last connection of a peer is gone. Its leases are cut short as their rules say
    /// ([`crate::rules::concurrency::Gone`]) unless it is [back](LeaseBook::peer_back) before that.
    /// Only leases that the caller named, or nobody did, have a peer.
    pub fn peer_gone(&mut self, peer: Peer, now: Timestamp) {
        self.advance(now);
        self.peers.gone(peer, self.now);
    }

    /// A peer has a connection again. What was cut stays cut.
    pub fn peer_back(&mut self, peer: Peer, now: Timestamp) {
        self.advance(now);
        self.peers.back(peer);
    }

    /// Cuts what is due at `at` of a peer that is gone.
    pub(super) fn cut_short(&mut self, peer: Peer, at: Timestamp) {
        let holding = self.peers.by_peer.get(&peer);
        let gone = holding.and_then(|known| Some((known.gone?.0, &known.leases)));
        let Some((since, leases)) = gone else {
            self.peers.due.remove(&(at, peer));
            return;
        };
        let leases: Vec<u64> = leases.iter().copied().collect();
        let mut next: Option<Timestamp> = None;
        let mut cut = Vec::new();
        for sequence in leases {
            let Some((gone, expires)) = self.scope_of(sequence) else {
                continue;
            };
            let when = since + gone.after.unwrap_or(Span::MAX);
            if when <= at {
                cut.push((sequence, expires.min(when + gone.grace)));
            } else {
                next = Some(next.map_or(when, |next| next.min(when)));
            }
        }
        // First, as the peer is forgotten together with its last lease.
        self.peers.look_again(peer, next);
        for (sequence, expires) in cut {
            self.totals.cut_short += 1;
            let counter = self.records.get(sequence).and_then(|lease| {
                let held = lease.held.first()?;
                self.counters.get(&held.key)
            });
            if let Some((_, counts)) = counter.and_then(|known| self.limits.get_mut(known.stats)) {
                counts.cut_short += 1;
            }
            self.move_expiry(sequence, expires);
            self.peers.remove(peer, sequence);
        }
    }

    /// What the rule of a lease says about its peer, and its expiry. A lease with a peer has one
    /// key.
    fn scope_of(&self, sequence: u64) -> Option<(Gone, Timestamp)> {
        let lease = self.records.get(sequence)?;
        let counter = self.counters.get(&lease.held.first()?.key)?;
        Some((counter.rule.gone, lease.expires))
    }
}
