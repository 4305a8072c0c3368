//! A request for permits: the call of the script that decides it, and what undoes it.

use std::sync::{Arc, atomic::Ordering};

use rand::RngExt;
use smallvec::SmallVec;
use tokio::{select, time::sleep};

use super::{Fleet, NO_BOOT, Request, Taken, waiting};
use crate::{
    algorithm::concurrency::real::real,
    model::{
        key::CounterKey,
        lease::{Cause, LeaseId},
        time::Span,
    },
    rules::Stacking,
    store::{
        charges::Outcomes,
        lease::{Answer, AskError, Undo},
        leases::{self, RateUnits},
        redis::{
            StoreError,
            lease::{Granting, How, Request as Call, Word},
        },
    },
};

impl Fleet {
    /// Decides a request for permits; may wait for them.
    ///
    /// # Cancel safety
    /// Dropped before it is done, the request leaves the queue, and what it may have been granted
    /// is undone.
    ///
    /// # Errors
    /// What cannot be decided; nothing was taken.
    pub async fn acquire(self: &Arc<Self>, request: &Request) -> Result<Taken, AskError> {
        let owner = self.owner(request)?;
        let begun = self.clock.now().steady;
        self.watch.note(request, begun);
        let until = begun + request.wait;
        let rank = request.order.rank();
        let first = request.order.items.first().map(|item| item.key);
        let most = request
            .rules
            .iter()
            .map(|(rule, _)| rule.waiting.max_waiters);
        let most = most.min().unwrap_or_default();
        let enter = |key| self.queues.enter(key, rank, most, self.bounds.waiters);
        let mut place = first
            .filter(|key| !request.wait.is_zero() && self.queues.waiting_for(*key) > 0)
            .and_then(enter);
        let (mut again, mut waits, mut given_up) = (false, !request.wait.is_zero(), None);
        loop {
            let now = self.clock.now().steady;
            let left = now.until(until);
            if let Some(place) = &place
                && !place.is_first()
                && !left.is_zero()
            {
                select! {
                    () = place.called() => {}
                    () = sleep(left.into()) => {}
                }
                continue;
            }
            waits &= !left.is_zero();
            let decided = self.attempt(request, &owner, waits, again).await;
            let (granting, outcomes) = match decided {
                Ok(decided) => decided,
                Err(error) => return self.without_store(request, error).await,
            };
            again = true;
            match granting.word {
                Word::Full => return Err(AskError::BookFull),
                Word::Short => {}
                _ => {
                    let now = self.clock.now().steady;
                    let waiters = first.map_or(0, |key| self.queues.waiting_for(key));
                    let mut answer = request.answer(&granting, &outcomes, waiters, now);
                    if answer.is_go() {
                        answer.waited = place.map_or(Span::ZERO, |_| now.since(begun));
                    } else if let (Some(cause), Some(_)) = (given_up, answer.cause) {
                        answer.cause = Some(cause);
                    }
                    return Ok(self.settled(request, answer, outcomes));
                }
            }
            // No waiting helps against a rate limit of the same request.
            waits = leases::rate_short(&request.rates, &outcomes).is_none();
            given_up = self.why_not_wait(request, &granting);
            if waits && place.is_none() && given_up.is_none() {
                place = short_key(request, &granting).and_then(enter);
                if place.is_none() {
                    given_up = Some(Cause::QueueFull);
                }
            }
            waits &= given_up.is_none();
            if let (Some(place), true) = (&place, waits) {
                let pause = waiting::pause(pace(request, &granting));
                let left = self.clock.now().steady.until(until);
                select! {
                    () = place.called() => {}
                    () = sleep(pause.min(left).into()) => {}
                }
            }
        }
    }

    /// Whom the leases of a request follow; nobody when it has no session.
    fn owner(&self, request: &Request) -> Result<String, AskError> {
        let Some(session) = request.session else {
            return Ok(String::new());
        };
        let (owner, leases) = self.sessions.owner(session).ok_or(AskError::NoSession)?;
        if leases >= self.bounds.leases_per_session {
            return Err(AskError::SessionFull);
        }
        Ok(owner)
    }

    /// Nobody waits who could not finish before its deadline.
    fn why_not_wait(&self, request: &Request, granting: &Granting) -> Option<Cause> {
        let deadline = request.deadline?;
        let hold = granting.states.iter().map(|state| state.mean_hold);
        let needed = Span::from_secs_f64(pace(request, granting) + hold.fold(0.0, f64::max));
        (self.clock.now().steady + needed > deadline).then_some(Cause::Deadline)
    }

    /// Asks the store once.
    async fn attempt(
        self: &Arc<Self>,
        request: &Request,
        owner: &str,
        may_wait: bool,
        again: bool,
    ) -> Result<(Granting, Outcomes), StoreError> {
        let ids: SmallVec<[LeaseId; 2]> = (0..request.leases()).map(|_| self.new_id()).collect();
        let charges = leases::charges(&request.rates);
        let call = Call {
            order: &request.order,
            rules: &request.rules,
            charges: &charges,
            ids: &ids,
            adopt: &request.adopt,
            expected_hold: request.expected_hold,
            owner,
            life: if owner.is_empty() {
                request.order.ttl
            } else {
                self.session_life()
            },
            bound: self.bounds.leases,
            how: How {
                dry_run: request.dry_run,
                partial: request.partial,
                may_wait,
                again,
                draining: self.draining.load(Ordering::Relaxed),
                impossible: request.impossible.is_some(),
            },
        };
        let mut unsettled = Unsettled {
            fleet: self,
            ids: &ids,
            rates: &request.rates,
            sent: false,
        };
        let sent = &mut unsettled.sent;
        let decided = self
            .redis()
            .acquire(&self.domain, &call, request.patience, || *sent = true);
        let decided = decided.await;
        match &decided {
            Ok(_) => {
                unsettled.sent = false;
                self.hand_over();
            }
            Err(StoreError::Timeout | StoreError::Broken) => {}
            Err(_) => unsettled.sent = false,
        }
        decided
    }

    /// An id that any replica recognises and nobody can guess.
    fn new_id(&self) -> LeaseId {
        let mut random = rand::rng();
        LeaseId {
            boot: NO_BOOT,
            book: self.number,
            sequence: random.random::<u64>() & LeaseId::MAX_PART,
            secret: random.random::<u64>() & LeaseId::MAX_PART,
        }
    }

    /// An answer that may leave; its leases belong to its session.
    fn settled(self: &Arc<Self>, request: &Request, answer: Answer, outcomes: Outcomes) -> Taken {
        if let Some(session) = request.session
            && answer.is_go()
            && !self.sessions.add(session, &answer.leases)
        {
            // The stream ended meanwhile.
            self.undo(&answer, &request.rates, Undo::Left);
        }
        Taken {
            answer: Box::new(answer),
            outcomes,
            degraded: None,
        }
    }

    /// Takes a granted answer back, rate units and all: it never left. Another call that was
    /// answered with the same lease keeps both.
    pub fn undo(self: &Arc<Self>, answer: &Answer, rates: &[RateUnits], why: Undo) {
        self.take_back(&answer.leases, rates, why);
    }

    fn take_back(self: &Arc<Self>, leases: &[LeaseId], rates: &[RateUnits], why: Undo) {
        if leases.is_empty() && rates.is_empty() {
            return;
        }
        self.sessions.remove(leases);
        let kept = self.undo_here(leases, rates, why);
        if kept.is_empty() && !leases.is_empty() {
            return;
        }
        let mut refunds = leases::charges(rates);
        refunds.terms.stacking = Stacking::Independent;
        for charge in &mut refunds.list {
            charge.refund = true;
        }
        let message = self
            .redis()
            .undoing(&self.domain, &kept, why == Undo::TimedOut, &refunds);
        self.post(message);
    }
}

/// A request that was sent and not answered. Dropped, what it may have been granted is undone.
struct Unsettled<'a> {
    fleet: &'a Arc<Fleet>,
    ids: &'a [LeaseId],
    rates: &'a [RateUnits],
    sent: bool,
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if self.sent {
            self.fleet.take_back(self.ids, self.rates, Undo::TimedOut);
        }
    }
}

/// The first key that is short.
fn short_key(request: &Request, granting: &Granting) -> Option<CounterKey> {
    let place = granting.states.iter().position(|state| state.short)?;
    request.order.items.get(place).map(|item| item.key)
}

/// Seconds between two permits that come back, of the slowest limit that is short.
fn pace(request: &Request, granting: &Granting) -> f64 {
    let states = granting.states.iter().zip(&request.rules);
    let short = states.filter(|(state, _)| state.short);
    short
        .map(|(state, (_, limit))| state.mean_hold / real(*limit).max(1.0))
        .fold(0.0, f64::max)
}
