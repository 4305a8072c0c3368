//! How leases end, or live on.

use std::sync::Arc;

use crate::{
    algorithm::concurrency::law::Sample,
    model::{
        key::CounterKey,
        lease::{EndedBy, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    store::lease::{
        Ending, Event, LeaseBook, REMEMBER_ENDED,
        ask::Naming,
        record::{Ended, Lease},
    },
};

/// A lease that is given back.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// Which.
    pub id: LeaseId,
    /// Who says so; none trusts whoever knows the id.
    pub holder: Option<&'a str>,
    /// What became of the work.
    pub outcome: Outcome,
    /// How long it was held, if the holder knows better; at most what was seen.
    pub held: Option<Span>,
    /// How long the work itself took, without queues of the holder's own.
    pub service_time: Option<Span>,
    /// How many permits the work really needed, if the holder knows: feeds learned weights.
    pub actual_permits: Option<u64>,
}

impl LeaseBook {
    /// Gives a lease back. Permits of waiters change hands at the next [`LeaseBook::turn`].
    pub fn release(&mut self, release: &Release<'_>, now: Timestamp) -> ReleaseStatus {
        self.advance(now);
        let status = match self.find(&release.id, release.holder) {
            Found::Live(sequence) => self.finish(sequence, release),
            Found::Ended(ended) => self.status_of(&ended),
            Found::Unknown => ReleaseStatus::Unknown,
            Found::OtherBoot => ReleaseStatus::OtherBoot,
            Found::NotHolder => ReleaseStatus::NotHolder,
        };
        self.totals.released(status, release.outcome);
        status
    }

    /// Gives back the lease of this name. Of a name that nobody knows it leaves a mark: the
    /// acquire may still be on its way.
    pub fn release_named(
        &mut self,
        key: CounterKey,
        name: CounterKey,
        outcome: Outcome,
        service_time: Option<Span>,
        now: Timestamp,
    ) -> ReleaseStatus {
        self.advance(now);
        let now = self.now;
        let known = self.records.named(key, name);
        let live = known
            .and_then(|sequence| self.records.get(sequence))
            .map(|lease| lease.id);
        let status = if let Some(id) = live {
            self.finish_by_key(id, outcome, service_time)
        } else if self.refused.take(&(key, name), now).is_some() {
            self.totals.refused_releases += 1;
            ReleaseStatus::Unknown
        } else if let Some(ended) = known.and_then(|sequence| self.recent(sequence)) {
            self.status_of(&ended)
        } else {
            self.totals.early_releases += 1;
            let until = now + self.marks(key).early_release;
            self.early.insert((key, name), (), until, now);
            ReleaseStatus::Unknown
        };
        self.totals.released(status, outcome);
        status
    }

    /// Ends a lease whose release named its key: neither holder nor hold time are told.
    fn finish_by_key(
        &mut self,
        id: LeaseId,
        outcome: Outcome,
        service_time: Option<Span>,
    ) -> ReleaseStatus {
        let release = Release {
            id,
            holder: None,
            outcome,
            held: None,
            service_time,
            actual_permits: None,
        };
        self.finish(id.sequence, &release)
    }

    /// Gives back the oldest lease without a name, unless the release belongs to a refusal.
    pub fn release_anonymous(
        &mut self,
        key: CounterKey,
        outcome: Outcome,
        service_time: Option<Span>,
        now: Timestamp,
    ) -> ReleaseStatus {
        self.advance(now);
        let now = self.now;
        let mut oldest = None;
        if let Some(counter) = self.counters.get_mut(&key) {
            if counter.take_ghost(now) {
                self.totals.refused_releases += 1;
            } else {
                oldest = counter.anonymous.first().copied();
            }
        }
        let lease = oldest.and_then(|sequence| self.records.get(sequence));
        let status = lease
            .map(|lease| lease.id)
            .map_or(ReleaseStatus::Unknown, |id| {
                self.finish_by_key(id, outcome, service_time)
            });
        self.totals.released(status, outcome);
        status
    }

    /// Lets a lease live on, up to its maximum lifetime. Never shortens, never revives. Without a
    /// TTL it gets the rule's.
    pub fn renew(
        &mut self,
        id: &LeaseId,
        holder: Option<&str>,
        ttl: Option<Span>,
        now: Timestamp,
    ) -> RenewStatus {
        self.advance(now);
        let sequence = match self.find(id, holder) {
            Found::Live(sequence) => sequence,
            Found::Ended(ended) => return RenewStatus::Gone(ended.by),
            Found::Unknown => return RenewStatus::Unknown,
            Found::OtherBoot => return RenewStatus::OtherBoot,
            Found::NotHolder => return RenewStatus::NotHolder,
        };
        let Some(lease) = self.records.get(sequence) else {
            return RenewStatus::Unknown;
        };
        let ttl = ttl.unwrap_or_else(|| self.default_ttl(lease));
        let wanted = self.now + ttl;
        let expires = wanted.min(lease.latest).max(lease.expires);
        let capped = wanted > lease.latest;
        self.move_expiry(sequence, expires);
        let in_session = self
            .records
            .get(sequence)
            .is_some_and(|lease| lease.session.is_some());
        let left = expires.since(self.now);
        RenewStatus::Renewed {
            // A session's lease ends with its stream; more than was asked for is no promise.
            expires_in: if in_session { left.min(ttl) } else { left },
            capped,
        }
    }

    fn default_ttl(&self, lease: &Lease) -> Span {
        let rules = lease
            .held
            .iter()
            .filter_map(|held| self.counters.get(&held.key));
        rules
            .map(|counter| counter.rule.lease_ttl)
            .min()
            .unwrap_or(Span::ZERO)
    }

    fn find(&self, id: &LeaseId, holder: Option<&str>) -> Found {
        let is_other = |known: &Arc<str>| {
            !known.is_empty() && holder.is_some_and(|holder| holder != known.as_ref())
        };
        if let Some(lease) = self.records.find(id) {
            return match lease.naming {
                Naming::Issued if is_other(&lease.holder) => Found::NotHolder,
                Naming::Issued => Found::Live(id.sequence),
                // Its id was never told to anybody.
                Naming::Named(_) | Naming::Anonymous => Found::Unknown,
            };
        }
        if self.records.find_ended(id).is_some()
            && let Some(ended) = self.recent(id.sequence)
        {
            return if is_other(&ended.holder) {
                Found::NotHolder
            } else {
                Found::Ended(ended)
            };
        }
        if id.boot == self.identity.boot {
            Found::Unknown
        } else {
            Found::OtherBoot
        }
    }

    /// An ended lease, while it is remembered.
    fn recent(&self, sequence: u64) -> Option<Ended> {
        let ended = self.records.ended(sequence)?;
        (ended.noticed + REMEMBER_ENDED > self.now).then(|| ended.clone())
    }

    fn status_of(&self, ended: &Ended) -> ReleaseStatus {
        match ended.by {
            EndedBy::Released => ReleaseStatus::AlreadyReleased,
            EndedBy::Expired => ReleaseStatus::Late {
                by: self.now.since(ended.expires),
            },
            EndedBy::SessionLost => ReleaseStatus::SessionLost,
            EndedBy::Revoked => ReleaseStatus::Revoked,
        }
    }

    /// Ends a live lease as its holder wants, and learns from it.
    fn finish(&mut self, sequence: u64, release: &Release<'_>) -> ReleaseStatus {
        let now = self.now;
        let Some(lease) = self.end(sequence, Ending::Returned(release.outcome), now) else {
            return ReleaseStatus::Unknown;
        };
        let seen = lease.age(now);
        let held = release.held.map_or(seen, |held| held.min(seen));
        for part in &lease.held {
            if release.outcome == Outcome::Success {
                let service = release.service_time.unwrap_or(held);
                self.learn_weight(part, service, release.actual_permits);
            }
            let Some(counter) = self.counters.get_mut(&part.key) else {
                continue;
            };
            if let Some((_, counts)) = self.limits.get_mut(counter.stats) {
                counts.released(ReleaseStatus::Released { held }, release.outcome);
            }
            if release.outcome == Outcome::Success {
                counter.learn(held);
            }
            if release.outcome == Outcome::Ignored {
                continue;
            }
            let sample = Sample {
                latency: release.service_time.unwrap_or(held),
                in_flight: part.in_flight,
                dropped: release.outcome == Outcome::Dropped,
            };
            let Some(change) = counter.finished(sample, now) else {
                continue;
            };
            let path = Arc::clone(&counter.rule.path);
            if let Some((_, counts)) = self.limits.get_mut(counter.stats) {
                counts.changed(change.reason);
            }
            self.totals.changed(change.reason);
            let key = part.key;
            self.events.push(Event::LimitChanged { path, key, change });
            self.limit_moved(key);
        }
        ReleaseStatus::Released { held }
    }
}

/// What is known under a lease id.
enum Found {
    Live(u64),
    Ended(Ended),
    Unknown,
    OtherBoot,
    NotHolder,
}
