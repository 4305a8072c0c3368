//! While the shared store is away.
//!
//! A domain that says `local` goes on with a book of its own, each limit divided by the number of
//! replicas. When the store is back those leases are handed over to it: they keep their ids, they
//! count (also above the limit), and any replica can end them.

use std::sync::{Arc, atomic::Ordering};

use smallvec::SmallVec;

use crate::{
    algorithm::concurrency::law::LawSettings,
    model::{
        key::CounterKey,
        lease::{Cause, Decision, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Now, Span},
    },
    rules::{OnStoreFailure, concurrency::ConcurrencyRule},
    store::{
        charges::Outcomes,
        decided::Degraded,
        fallback::{RETRY_WHEN_DENIED, allowed, denied, share},
        fleet::{Fleet, Request, Taken},
        lease::{Answer, AskError, Item, ItemState, Naming, Release, SavedLease, Undo},
        leases::{self, Acquired, RateUnits},
        redis::{StoreError, lease::Message},
    },
};

/// Leases in one message.
const TOGETHER: usize = 64;

impl Fleet {
    /// The answer of a domain whose store is away.
    pub(super) async fn without_store(
        self: &Arc<Self>,
        request: &Request,
        error: StoreError,
    ) -> Result<Taken, AskError> {
        let charges = leases::charges(&request.rates);
        let (answer, outcomes) = match request.on_failure {
            OnStoreFailure::Allow => {
                let outcomes = charges.list.iter().map(allowed).collect();
                (request.unanswered(true), outcomes)
            }
            OnStoreFailure::Deny => {
                let outcomes = charges.list.iter().map(denied).collect();
                (request.unanswered(false), outcomes)
            }
            OnStoreFailure::Local => self.on_our_own(request).await?,
        };
        Ok(Taken {
            answer: Box::new(answer),
            outcomes,
            degraded: Some(Degraded {
                answer: request.on_failure,
                error,
            }),
        })
    }

    async fn on_our_own(
        self: &Arc<Self>,
        request: &Request,
    ) -> Result<(Answer, Outcomes), AskError> {
        let replicas = self.store.replicas();
        let part = |limit: u64| {
            let parts = u64::from(replicas.get());
            // A limit of fewer permits than replicas grants one at each of them.
            (limit / parts).max(limit.min(1))
        };
        let parted = |item: &Item| Item {
            rule: item.rule.as_ref().map(|rule| {
                Arc::new(ConcurrencyRule {
                    limit: LawSettings::Fixed(part(rule.limit.most())),
                    ..ConcurrencyRule::clone(rule)
                })
            }),
            ..item.clone()
        };
        let items: SmallVec<[Item; 2]> = request.items.iter().map(parted).collect();
        let rates: SmallVec<[RateUnits; 2]> = request
            .rates
            .iter()
            .map(|units| RateUnits {
                limit: share(&units.limit, replicas),
                ..units.clone()
            })
            .collect();
        let ask = request.ask(&items);
        let now = self.clock.now();
        let taken = self
            .stand_in
            .acquire(&ask, rates.clone(), &self.clock, now)?;
        let (answer, outcomes) = match taken {
            Acquired::Now(answer, outcomes) => (answer, outcomes),
            Acquired::Waits(pending) => {
                let answer = pending.answer().await;
                let answer = answer.unwrap_or_else(|| Box::new(Answer::new(Decision::Refused)));
                let charges = leases::charges(&rates);
                let outcomes = self.store.memory().look(&charges, self.clock.now().wall);
                (answer, outcomes)
            }
        };
        if !answer.leases.is_empty() && answer.is_go() {
            self.strayed.fetch_add(1, Ordering::AcqRel);
            if let Some(session) = request.session
                && !self.sessions.add(session, &answer.leases)
            {
                self.undo(&answer, &rates, Undo::Left);
            }
        }
        Ok((*answer, outcomes))
    }

    fn may_have_strayed(&self) -> bool {
        self.strayed.load(Ordering::Acquire) > 0
    }

    /// Ends a lease that the store does not know; none when it is not one of those.
    pub(super) fn release_here(&self, release: &Release<'_>, now: Now) -> Option<ReleaseStatus> {
        if !self.may_have_strayed() {
            return None;
        }
        let has = |book: &mut crate::store::lease::LeaseBook| book.has(&release.id, now.steady);
        if !self.stand_in.with(now, has) {
            return None;
        }
        let status = self.stand_in.release(release, now);
        self.sessions.remove(&[release.id]);
        Some(status)
    }

    /// Prolongs a lease that the store does not know.
    pub(super) fn renew_here(
        &self,
        id: &LeaseId,
        holder: Option<&str>,
        ttl: Option<Span>,
        now: Now,
    ) -> Option<RenewStatus> {
        let has = |book: &mut crate::store::lease::LeaseBook| book.has(id, now.steady);
        (self.may_have_strayed() && self.stand_in.with(now, has))
            .then(|| self.stand_in.renew(id, holder, ttl, now))
    }

    /// Whether there was such a lease that the store does not know; it is ended.
    pub(super) fn release_by_here(
        &self,
        key: CounterKey,
        name: Option<CounterKey>,
        outcome: Outcome,
        service_time: Option<Span>,
        now: Now,
    ) -> bool {
        let has = |book: &mut crate::store::lease::LeaseBook| book.has_by(key, name, now.steady);
        let there = self.may_have_strayed() && self.stand_in.with(now, has);
        if there {
            let _ = self
                .stand_in
                .release_by(key, name, outcome, service_time, now);
        }
        there
    }

    /// Leases of a stream that ended: those that the store does not know end here.
    pub(super) fn end_here(&self, leases: &[LeaseId]) {
        if !self.may_have_strayed() {
            return;
        }
        let now = self.clock.now();
        for id in leases {
            let release = Release {
                id: *id,
                holder: None,
                outcome: Outcome::Ignored,
                held: None,
                service_time: None,
                actual_permits: None,
            };
            let _ = self.release_here(&release, now);
        }
    }

    /// Leases of a stream that lives: those that the store does not know are prolonged here. The
    /// others.
    pub(super) fn keep_here(&self, leases: Vec<LeaseId>) -> Vec<LeaseId> {
        let now = self.clock.now();
        let mut others = leases;
        let life = Some(self.session_life());
        others.retain(|id| self.renew_here(id, None, life, now).is_none());
        others
    }

    /// Undoes those that the store does not know. The others.
    pub(super) fn undo_here(
        &self,
        leases: &[LeaseId],
        rates: &[RateUnits],
        why: Undo,
    ) -> Vec<LeaseId> {
        if !self.may_have_strayed() {
            return leases.to_vec();
        }
        let now = self.clock.now();
        let mut others = Vec::new();
        for id in leases {
            if self.stand_in.with(now, |book| book.has(id, now.steady)) {
                let mut answer = Answer::new(Decision::Granted);
                answer.leases.push(*id);
                self.stand_in.undo(&answer, rates, why, now);
            } else {
                others.push(*id);
            }
        }
        others
    }

    /// The store is there: it gets the leases that were granted without it.
    pub(super) fn hand_over(self: &Arc<Self>) {
        if self.may_have_strayed() && !self.handing_over.swap(true, Ordering::AcqRel) {
            tokio::spawn(hand_over(Arc::clone(self)));
        }
    }

    async fn hand_over_once(self: &Arc<Self>) -> Result<(), StoreError> {
        let grants = self.strayed.load(Ordering::Acquire);
        let now = self.clock.now();
        let saved = self.stand_in.with(now, |book| book.save(now.steady));
        let mut leases = saved.leases.into_iter().peekable();
        if leases.peek().is_none() {
            // Unless another one was granted meanwhile.
            let none =
                self.strayed
                    .compare_exchange(grants, 0, Ordering::AcqRel, Ordering::Relaxed);
            let _ = none;
            return Ok(());
        }
        let life = self.session_life();
        let mut leases: Vec<(SavedLease, Span, String)> = leases
            .map(|lease| {
                let owner = self.sessions.owner_of(lease.id);
                (lease, life, owner)
            })
            .collect();
        while !leases.is_empty() {
            let some: Vec<_> = leases.drain(..leases.len().min(TOGETHER)).collect();
            let message = Message::register(&some);
            self.redis()
                .call(&self.domain, &message, Span::MAX, || ())
                .await?;
            let ids: Vec<LeaseId> = some.iter().map(|(lease, ..)| lease.id).collect();
            let now = self.clock.now();
            let ended = self
                .stand_in
                .with(now, |book| book.take_leave(&ids, now.steady));
            for (lease, ..) in some.iter().filter(|(lease, ..)| ended.contains(&lease.id)) {
                // It ended here while the message was on its way.
                self.post_release(lease);
            }
        }
        Ok(())
    }

    fn post_release(self: &Arc<Self>, lease: &SavedLease) {
        let message = match (lease.naming, lease.items.first()) {
            (Naming::Named(name), Some(item)) => {
                Message::release_by(item.key, Some(name), Outcome::Ignored)
            }
            (Naming::Anonymous, Some(item)) => {
                Message::release_by(item.key, None, Outcome::Ignored)
            }
            _ => Message::release(&[Release {
                id: lease.id,
                holder: None,
                outcome: Outcome::Ignored,
                held: None,
                service_time: None,
                actual_permits: None,
            }]),
        };
        self.post(message);
    }
}

async fn hand_over(fleet: Arc<Fleet>) {
    let done = fleet.hand_over_once().await;
    fleet.handing_over.store(false, Ordering::Release);
    if let Err(error) = done {
        tracing::debug!(%error, "leases are not handed over yet");
    }
}

impl Request {
    /// The answer when nobody counts: everything passes without a lease, or nothing.
    fn unanswered(&self, passes: bool) -> Answer {
        let mut answer = Answer::new(match (passes, self.dry_run) {
            (true, true) => Decision::WouldGrant,
            (true, false) => Decision::Granted,
            (false, _) => Decision::Refused,
        });
        for (index, place) in self.order.places.iter().enumerate() {
            let limit = place.and_then(|place| self.rules.get(place));
            let limit = limit.map_or(0, |(_, limit)| *limit);
            answer.items.push(ItemState {
                limit,
                remaining: if passes { limit } else { 0 },
                ..ItemState::default()
            });
            if !passes && place.is_some() {
                answer.limiting.push(index);
            }
        }
        if !passes {
            answer.cause = Some(Cause::Concurrency);
            answer.shared = true;
            answer.retry_after = Some(RETRY_WHEN_DENIED);
        }
        answer
    }
}
