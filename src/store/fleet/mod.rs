//! The leases of one domain in a store that all replicas share.
//!
//! A request for permits is one call of the script in `store/redis/lease`, which decides it
//! together with its rate limits. What needs a process of its own is here: requests that wait
//! ([`waiting`]), streams that keep leases alive ([`session`]), what has to be told to the store
//! sooner or later ([`outbox`]), how limits stand for the metrics ([`watch`]), and what is done
//! while it is away ([`stand_in`]).

mod outbox;
mod request;
mod session;
mod stand_in;
#[cfg(test)]
mod twin;
mod waiting;
mod watch;

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rand::RngExt;
use smallvec::SmallVec;
use tokio::{select, time::sleep};

pub use self::request::Request;
use self::{outbox::Outbox, session::Sessions, waiting::Queues, watch::Watch};
use crate::{
    algorithm::concurrency::real::real,
    model::{
        key::CounterKey,
        lease::{Cause, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Clock, Now, Span},
    },
    rules::{Stacking, concurrency::ConcurrencyRule},
    store::{
        Degraded, Outcomes,
        fallback::SharedStore,
        lease::{Answer, AskError, Bounds, Identity, KeyView, LeaseBook, LeaseView, Release, Undo},
        leases::{self, Book, RateUnits},
        redis::{
            RedisStore, StoreError,
            lease::{
                Granting, How, Message, Request as Call, Standing, Word, count, leases as listed,
                releases, renewals, standings,
            },
        },
    },
};

/// The boot in the ids of shared leases: of no server's life.
pub const NO_BOOT: u32 = 0;

/// The leases of one domain.
#[derive(Debug)]
pub struct Fleet {
    domain: Arc<str>,
    /// Of the domain, in lease ids.
    number: u16,
    store: Arc<SharedStore>,
    clock: Clock,
    bounds: Bounds,
    draining: AtomicBool,
    queues: Arc<Queues>,
    sessions: Sessions,
    outbox: Outbox,
    watch: Watch,
    /// Grants while the store is away.
    stand_in: Arc<Book>,
    /// Grants of it since it was last empty: 0 when it has no lease that the store does not know.
    strayed: AtomicU64,
    handing_over: AtomicBool,
}

/// The answer to a request for permits.
#[derive(Debug)]
pub struct Taken {
    /// The answer.
    pub answer: Box<Answer>,
    /// How the rate limits of the request stand.
    pub outcomes: Outcomes,
    /// Set when the store did not decide.
    pub degraded: Option<Degraded>,
}

impl Fleet {
    /// The leases of a domain. Rate limits of requests are counted in `counters` while the store is
    /// away.
    pub(in crate::store) fn new(
        domain: &Arc<str>,
        store: &Arc<SharedStore>,
        clock: &Clock,
        bounds: Bounds,
        stand_in: impl FnOnce(LeaseBook) -> Arc<Book>,
    ) -> Self {
        let number = store.redis().number_of(domain);
        let identity = Identity {
            boot: NO_BOOT,
            book: number,
        };
        let book = LeaseBook::new(identity, bounds, rand::random(), clock.now().steady);
        Self {
            domain: Arc::clone(domain),
            number,
            store: Arc::clone(store),
            clock: clock.clone(),
            bounds,
            draining: AtomicBool::new(false),
            queues: Arc::default(),
            sessions: Sessions::default(),
            outbox: Outbox::default(),
            watch: Watch::default(),
            stand_in: stand_in(book),
            strayed: AtomicU64::new(0),
            handing_over: AtomicBool::new(false),
        }
    }

    /// The number of the domain in lease ids; domains may share one.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The leases that this process granted while the store was away, and has not handed over.
    pub(in crate::store) fn stand_in(&self) -> &Arc<Book> {
        &self.stand_in
    }

    /// Grants nothing more from now on; releases and renewals go on.
    pub(in crate::store) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// How long a lease of a session lives without being renewed.
    fn session_life(&self) -> Span {
        self.redis().session_life()
    }

    fn redis(&self) -> &RedisStore {
        self.store.redis()
    }

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
        refunds.stacking = Stacking::Independent;
        for charge in &mut refunds.list {
            charge.refund = true;
        }
        let message = self
            .redis()
            .undoing(&self.domain, &kept, why == Undo::TimedOut, &refunds);
        self.post(message);
    }

    /// Ends leases by their ids, and says which.
    ///
    /// # Errors
    /// The store is away: the leases end as soon as it is back.
    pub async fn release(
        self: &Arc<Self>,
        given: &[Release<'_>],
        now: Now,
    ) -> Result<Vec<ReleaseStatus>, StoreError> {
        let mut statuses = vec![ReleaseStatus::Unknown; given.len()];
        let (mut places, mut away) = (Vec::new(), Vec::new());
        for (place, release) in given.iter().enumerate() {
            if let Some(status) = self.release_here(release, now) {
                statuses[place] = status;
            } else {
                places.push(place);
                away.push(*release);
            }
        }
        if away.is_empty() {
            return Ok(statuses);
        }
        let message = Message::release(&away);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        let (told, keys) = match answer.and_then(releases) {
            Ok(told) => told,
            Err(error) => {
                self.post(message);
                return Err(error);
            }
        };
        let ids: Vec<LeaseId> = away.iter().map(|release| release.id).collect();
        self.sessions.remove(&ids);
        for key in keys {
            self.queues.call(key);
        }
        for (place, status) in places.into_iter().zip(told) {
            statuses[place] = status;
        }
        Ok(statuses)
    }

    /// Ends the lease of this name, or the oldest one without a name. While the store is away it
    /// will be told.
    pub async fn release_by(
        self: &Arc<Self>,
        key: CounterKey,
        name: Option<CounterKey>,
        outcome: Outcome,
        service_time: Option<Span>,
        now: Now,
    ) -> Result<(), StoreError> {
        if self.release_by_here(key, name, outcome, service_time, now) {
            return Ok(());
        }
        let message = Message::release_by(key, name, outcome);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        if let Err(error) = answer {
            self.post(message);
            return Err(error);
        }
        self.queues.call(key);
        Ok(())
    }

    /// Prolongs leases.
    ///
    /// # Errors
    /// The store is away.
    pub async fn renew(
        &self,
        renewed: &[(LeaseId, Option<&str>, Option<Span>)],
        now: Now,
    ) -> Result<Vec<RenewStatus>, StoreError> {
        let mut statuses = vec![RenewStatus::Unknown; renewed.len()];
        let (mut places, mut away) = (Vec::new(), Vec::new());
        for (place, (id, holder, ttl)) in renewed.iter().enumerate() {
            if let Some(status) = self.renew_here(id, *holder, *ttl, now) {
                statuses[place] = status;
            } else {
                places.push(place);
                away.push((*id, *holder, *ttl));
            }
        }
        if away.is_empty() {
            return Ok(statuses);
        }
        let message = Message::renew(&away);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        for (place, status) in places.into_iter().zip(answer.and_then(renewals)?) {
            statuses[place] = status;
        }
        Ok(statuses)
    }

    /// How a key stands; none of one that nobody asked for. Changes nothing.
    pub async fn peek(
        &self,
        key: CounterKey,
        rule: &ConcurrencyRule,
    ) -> Result<Option<KeyView>, StoreError> {
        let standings = self.standings(&[key]).await?;
        let view = |standing| self.view(key, rule.limit.most(), standing);
        Ok(standings.into_iter().next().flatten().map(view))
    }

    /// How keys stand; none of one that nobody asked for.
    async fn standings(&self, keys: &[CounterKey]) -> Result<Vec<Option<Standing>>, StoreError> {
        let message = Message::peek(keys);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        answer.and_then(standings)
    }

    /// Live leases of keys, in the order of the keys: at most `most` of each, those that end soonest,
    /// the oldest first. One call of the script.
    pub async fn leases(
        &self,
        keys: &[CounterKey],
        most: usize,
    ) -> Result<Vec<Vec<LeaseView>>, StoreError> {
        let message = Message::peek_leases(keys, most);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        let mut listed = answer.and_then(listed)?;
        for leases in &mut listed {
            leases.sort_by_key(|lease| Reverse(lease.age));
        }
        Ok(listed)
    }

    fn view(&self, key: CounterKey, limit: u64, standing: Standing) -> KeyView {
        let rate = |count: f64| {
            if standing.time > 0.0 {
                count / standing.time
            } else {
                0.0
            }
        };
        let pace = standing.mean_hold / real(limit).max(1.0);
        let reserved = standing.promised.as_secs_f64() / pace.max(f64::MIN_POSITIVE);
        KeyView {
            limit,
            in_flight: standing.in_flight,
            remaining: limit.saturating_sub(standing.in_flight),
            leases: standing.leases,
            waiters: self.queues.waiting_for(key),
            reserved: if pace > 0.0 { reserved } else { 0.0 },
            ghosts: standing.ghosts,
            mean_hold: standing.mean_hold,
            arrival_rate: rate(standing.arrived),
            throughput: rate(standing.completed),
            mean_in_flight: rate(standing.area),
            last_change: None,
        }
    }

    /// Estimates of a key back to their prior; its leases are revoked only when asked for. Whether
    /// it was known.
    pub async fn reset(&self, key: CounterKey, revoke: bool) -> Result<bool, StoreError> {
        let message = Message::reset(key, revoke);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await?;
        self.queues.call(key);
        Ok(count(&answer)? > 0)
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
