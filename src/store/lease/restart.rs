//! What a book tells its successor.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::LeaseId,
        time::{Span, Timestamp},
    },
    rules::concurrency::{ConcurrencyRule, OnRestart, RefundOn},
    store::lease::{
        Bounds, Ending, Identity, LeaseBook,
        ask::Naming,
        record::{Held, Lease},
    },
};

/// A book at one moment, in durations: it can be opened again on another clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// Grants so far.
    pub sequence: u64,
    /// Largest fence so far.
    pub fence: u64,
    /// Live leases, oldest first.
    pub leases: Vec<SavedLease>,
    /// Mean hold of each key in seconds, with the path of its rule.
    pub holds: Vec<(CounterKey, Arc<str>, f64)>,
}

/// A live lease in durations.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedLease {
    /// Its id, of the boot that granted it.
    pub id: LeaseId,
    /// Whose.
    pub holder: Arc<str>,
    /// Which process of theirs.
    pub instance: Arc<str>,
    /// Its request id with the holder, as the book keeps it; none if not replayable.
    pub request: Option<Vec<u8>>,
    /// How it is found.
    pub naming: Naming,
    /// Since the grant.
    pub age: Span,
    /// Until its expiry.
    pub remaining: Span,
    /// Until its maximum lifetime.
    pub lifetime: Span,
    /// What it holds.
    pub items: Vec<SavedItem>,
}

/// Permits of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedItem {
    /// The key.
    pub key: CounterKey,
    /// The path of its rule.
    pub path: Arc<str>,
    /// Permits.
    pub permits: u64,
    /// Permits asked for.
    pub asked: u64,
}

/// The life before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Earlier {
    ended: Timestamp,
    /// Its leases were taken over.
    is_known: bool,
    /// So long before `ended` was the last moment at which a lease can have been granted that is
    /// not known.
    elapsed: Span,
}

impl Earlier {
    /// See [`LeaseBook::closed_for`].
    pub(super) fn closed_for(self, rule: &ConcurrencyRule, now: Timestamp) -> Span {
        let closed = match rule.on_restart {
            // What a snapshot does not tell is waited for.
            OnRestart::Snapshot if !self.is_known => {
                let whole = OnRestart::Quarantine.closed_for(rule.lease_ttl);
                whole.saturating_sub(self.elapsed)
            }
            mode => mode.closed_for(rule.lease_ttl),
        };
        (self.ended + closed).since(now)
    }
}

impl LeaseBook {
    /// What has to survive a restart. Leases of sessions are saved as if they had none: their
    /// streams end with the process.
    pub fn save(&mut self, now: Timestamp) -> Saved {
        self.advance(now);
        let path = |key: &CounterKey| {
            let counter = self.counters.get(key);
            counter.map_or_else(|| "".into(), |counter| Arc::clone(&counter.rule.path))
        };
        let saved = |lease: &Lease| SavedLease {
            id: lease.id,
            holder: Arc::clone(&lease.holder),
            instance: Arc::clone(&lease.instance),
            request: lease
                .request
                .as_ref()
                .map(|request| request.bytes().to_vec()),
            naming: lease.naming,
            age: lease.age(self.now),
            remaining: lease.expires.since(self.now),
            lifetime: lease.latest.since(self.now),
            items: lease
                .held
                .iter()
                .map(|held| SavedItem {
                    key: held.key,
                    path: path(&held.key),
                    permits: held.permits,
                    asked: held.asked,
                })
                .collect(),
        };
        let mut leases: Vec<SavedLease> = self.records.iter().map(saved).collect();
        leases.sort_unstable_by_key(|lease| lease.id.sequence);
        let holds = self.counters.iter().map(|(key, counter)| {
            (
                *key,
                Arc::clone(&counter.rule.path),
                counter.finished_hold(),
            )
        });
        Saved {
            sequence: self.sequence,
            fence: self.fence(),
            leases,
            holds: holds.collect(),
        }
    }

    /// Leases that somebody else keeps from now on. Those of them that had ended meanwhile.
    pub(in crate::store) fn take_leave(
        &mut self,
        leases: &[LeaseId],
        now: Timestamp,
    ) -> Vec<LeaseId> {
        self.advance(now);
        let mut ended = Vec::new();
        for id in leases {
            if self.records.find(id).is_none() {
                ended.push(*id);
            } else {
                self.end(id.sequence, Ending::Undone, self.now);
            }
        }
        ended
    }

    /// Whether a lease is alive here.
    pub(in crate::store) fn has(&mut self, id: &LeaseId, now: Timestamp) -> bool {
        self.advance(now);
        self.records.find(id).is_some()
    }

    /// Whether the lease of this name, or one without a name, is alive here.
    pub(in crate::store) fn has_by(
        &mut self,
        key: CounterKey,
        name: Option<CounterKey>,
        now: Timestamp,
    ) -> bool {
        self.advance(now);
        if let Some(name) = name {
            let known = self.records.named(key, name);
            return known.is_some_and(|sequence| self.records.get(sequence).is_some());
        }
        let counter = self.counters.get(&key);
        counter.is_some_and(|counter| !counter.anonymous.is_empty())
    }

    /// Opens a book that follows another one, `down` after it was saved.
    ///
    /// Leases are taken over with what is left of them; give a `saved` without leases to forget
    /// them. Keys whose rule says so grant nothing new for a while, see
    /// [`crate::rules::concurrency::OnRestart`].
    pub fn reopen(
        identity: Identity,
        bounds: Bounds,
        seed: [u8; 32],
        now: Timestamp,
        saved: &Saved,
        down: Span,
        rule_of: impl Fn(&str) -> Option<Arc<ConcurrencyRule>>,
    ) -> Self {
        let mut book = Self::new(identity, bounds, seed, now);
        book.earlier = Some(Earlier {
            ended: now,
            is_known: true,
            elapsed: Span::ZERO,
        });
        book.sequence = saved.sequence;
        // Fences go on growing although the sequence is known: a later save adds both.
        book.fence = saved.fence.saturating_sub(saved.sequence);
        for (key, path, hold) in &saved.holds {
            if let Some(counter) = rule_of(path).and_then(|rule| book.counter(*key, &rule)) {
                counter.expect(Span::from_secs_f64(*hold));
                counter.learn(Span::from_secs_f64(*hold));
            }
        }
        for lease in &saved.leases {
            if lease.remaining > down {
                book.take_over(lease, down, &rule_of);
            }
        }
        book
    }

    /// An earlier life ended by `since`. Leases that are not known were granted `elapsed` before
    /// that, or earlier.
    pub const fn follow_known_since(&mut self, since: Timestamp, elapsed: Span) {
        self.earlier = Some(Earlier {
            ended: since,
            is_known: false,
            elapsed,
        });
    }

    /// Fences so far are not larger than this.
    pub const fn fence(&self) -> u64 {
        self.fence.saturating_add(self.sequence)
    }

    /// Fences to come are larger than this.
    pub fn raise_fence(&mut self, above: u64) {
        self.fence = self.fence.max(above.saturating_sub(self.sequence));
    }

    /// How much longer a limit grants nothing after a restart.
    pub fn closed_for(&self, rule: &ConcurrencyRule, now: Timestamp) -> Span {
        self.earlier
            .map_or(Span::ZERO, |earlier| earlier.closed_for(rule, now))
    }

    fn take_over(
        &mut self,
        saved: &SavedLease,
        down: Span,
        rule_of: &impl Fn(&str) -> Option<Arc<ConcurrencyRule>>,
    ) {
        let now = self.now;
        let expires = now + saved.remaining.saturating_sub(down);
        let sequence = saved.id.sequence;
        let mut held: SmallVec<[Held; 2]> = SmallVec::new();
        for item in &saved.items {
            let Some(rule) = rule_of(&item.path) else {
                continue;
            };
            let Some(counter) = self.counter(item.key, &rule) else {
                continue;
            };
            counter.take(sequence, expires, item.permits, None);
            if saved.naming == Naming::Anonymous {
                counter.anonymous.insert(sequence);
            }
            held.push(Held {
                key: item.key,
                permits: item.permits,
                asked: item.asked,
                in_flight: counter.in_flight,
            });
        }
        if held.is_empty() {
            return;
        }
        self.records.insert(Lease {
            id: saved.id,
            holder: Arc::clone(&saved.holder),
            instance: Arc::clone(&saved.instance),
            held,
            // The books of Little's law begin anew: an age from before would not be in the area.
            granted: now,
            expires,
            latest: now + saved.lifetime.saturating_sub(down),
            request: saved
                .request
                .as_deref()
                .map(super::record::RequestKey::from_bytes),
            naming: saved.naming,
            session: None,
            peer: None,
            tenant: None,
            // Which rate units hung on it is not saved: they stay used.
            refund_on: RefundOn::default(),
            earlier: saved.age.saturating_add(down),
            claims: 1,
        });
    }
}
