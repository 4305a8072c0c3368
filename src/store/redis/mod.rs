//! Counters of a whole fleet: Redis or Valkey.
//!
//! # One decision
//!
//! 1. [`batch`] puts the charges of a request into the next message of the worker's [`lane`].
//! 2. `lua/decide.lua` decides all requests of a message in one step, by Redis' own clock, so that
//!    replicas whose clocks differ still share one truth. Expiry is set in the same step.
//! 3. [`reply`] makes outcomes of the states that the script decided on.
//!
//! Of a limit with `slice` a process takes blocks ahead and serves from memory: [`mod@slice`].
//!
//! # When Redis is slow or away
//!
//! Nobody waits longer than the deadline. After five failures in a row the [`breaker`] opens and
//! nobody waits at all; the [`probe`] closes it. What a stalled Redis has not decided by the time
//! its connection is given up, it does not decide later either: each message carries an instant
//! after which it is void.

mod ask;
mod batch;
mod breaker;
mod connect;
mod error;
mod flight;
mod key;
mod lane;
mod lanes;
pub(in crate::store) mod lease;
mod number;
mod options;
mod probe;
mod remember;
mod reply;
mod script;
mod shared;
mod slice;
mod spread;
mod stats;
#[cfg(test)]
mod twin;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{
    model::{
        key::CounterKey,
        time::{Clock, Now, Span, Timestamp},
    },
    store::{
        charges::{Charges, Outcomes},
        decided::Decided,
        redis::{
            batch::Wanted,
            flight::Flight,
            key::HashTag,
            shared::Shared,
            slice::{Sent, Times, give_back},
        },
    },
};

pub use error::StoreError;
pub use lease::not_shared;
pub use number::{LARGEST, unsupported};
pub use options::{Address, Login, RedisOptions, Target, Tls, UrlError, parse_login};
pub use probe::Health;
pub use stats::{Snapshot, Stat};

/// Counters in Redis. Dropping it ends its connections.
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
    health: Arc<Mutex<Health>>,
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl RedisStore {
    /// A store at this place. Never fails because Redis is away: connections are made in the
    /// background and made anew when they break. Must be called inside a tokio runtime, which then
    /// runs the probe; each thread that decides has a connection on its own runtime.
    pub fn connect(options: RedisOptions, clock: Clock) -> Self {
        let shared = Arc::new(Shared::new(options, clock));
        let health = Arc::default();
        tokio::spawn(probe::run(Arc::clone(&shared), Arc::clone(&health)));
        Self { shared, health }
    }

    /// What the latest probe found.
    pub fn health(&self) -> Health {
        self.health.lock().clone()
    }

    /// The store's counters.
    pub fn snapshot(&self) -> Snapshot {
        let mut lanes = self.shared.lanes.lock();
        lanes.retain(|lane| lane.strong_count() > 0);
        let waiting = lanes.iter().filter_map(std::sync::Weak::upgrade);
        Snapshot {
            counts: self.shared.stats.counts(),
            errors: self.shared.stats.errors(),
            waiting: waiting.map(|lane| lane.waiting()).sum(),
            breaker_open: !self.shared.open_tags().is_empty(),
            latency: self.shared.stats.latency(),
        }
    }

    /// Whether refusals are remembered.
    pub fn remembers(&self) -> bool {
        self.shared.options.remembered_refusals > 0
    }

    /// The present instant by the clock of this store's deadlines.
    pub(in crate::store) fn now(&self) -> Now {
        self.shared.clock.now()
    }

    /// Decides a request that Redis need not be asked about: a remembered refusal, or units that
    /// this process holds. None: it has to be asked.
    pub fn at_once(&self, charges: &Charges<'_>, now: Now) -> Option<Decided> {
        if self.remembers()
            && let Some(outcome) =
                (self.shared.refusals).find(charges, self.shared.store_clock(now))
        {
            self.shared.stats.count(Stat::Remembered);
            return Some(Decided {
                outcomes: [outcome].into_iter().collect(),
                degraded: None,
                remembered: true,
            });
        }
        let store = || self.shared.store_clock(now);
        let outcomes = self.shared.slices.serve(charges, now.steady, store)?;
        self.shared.stats.count(Stat::Sliced);
        Some(outcomes.into())
    }

    /// [`RedisStore::at_once`], and [`RedisStore::ask`] where that says nothing.
    pub async fn decide(
        &self,
        domain: &str,
        charges: &Charges<'_>,
        deadline: Span,
    ) -> Result<Outcomes, StoreError> {
        if let Some(decided) = self.at_once(charges, self.now()) {
            return Ok(decided.outcomes);
        }
        self.ask(domain, charges, deadline).await
    }

    /// Decides all charges of one request to a domain, in one round trip that it may share with
    /// others. Waits at most `deadline`, and never longer than [`RedisOptions::deadline`].
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped may have been counted or not, as one that ran into its deadline.
    pub async fn ask(
        &self,
        domain: &str,
        charges: &Charges<'_>,
        deadline: Span,
    ) -> Result<Outcomes, StoreError> {
        self.wanted(domain, charges, Wanted::Decision, deadline)
            .await
    }

    /// What [`RedisStore::ask`] would say if all charges were asked for together; takes nothing
    /// and gives nothing back.
    pub async fn look(
        &self,
        domain: &str,
        charges: &Charges<'_>,
        deadline: Span,
    ) -> Result<Outcomes, StoreError> {
        self.wanted(domain, charges, Wanted::Look, deadline).await
    }

    /// Forgets counters of a domain, which may be `spread` over slots; says how many there were. For
    /// operators: opens a connection of its own.
    pub async fn reset(
        &self,
        domain: &str,
        spread: bool,
        keys: &[CounterKey],
    ) -> Result<u64, StoreError> {
        let options = &self.shared.options;
        let forget = async {
            let mut connection = connect::open(options, &Arc::default()).await?;
            let mut forgotten = 0;
            for key in keys {
                self.shared.refusals.forget(*key);
                self.shared.slices.forget(*key);
                let mut name = Vec::new();
                let tag = self.shared.tag_of(domain, spread, *key);
                key::write(&mut name, &tag, *key);
                let answer = connection.call(::redis::cmd("UNLINK").arg(name)).await?;
                forgotten += u64::from(answer == ::redis::Value::Int(1));
            }
            Ok(forgotten)
        };
        match timeout(options.connect_timeout.into(), forget).await {
            Ok(forgotten) => forgotten.map_err(|error| StoreError::of(&error)),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    async fn wanted(
        &self,
        domain: &str,
        charges: &Charges<'_>,
        wanted: Wanted,
        deadline: Span,
    ) -> Result<Outcomes, StoreError> {
        if charges.list.is_empty() {
            return Ok(Outcomes::new());
        }
        if self.shared.is_spread(charges.terms.spread) {
            let tags = self.shared.spread_tags(domain);
            return self.in_many_slots(&tags, charges, wanted, deadline).await;
        }
        let tag = self.shared.tag(domain);
        self.in_one_slot(&tag, charges, wanted, deadline).await
    }

    async fn in_one_slot(
        &self,
        tag: &HashTag,
        charges: &Charges<'_>,
        wanted: Wanted,
        deadline: Span,
    ) -> Result<Outcomes, StoreError> {
        if self.shared.is_open(tag) {
            self.shared.stats.error(StoreError::Unreachable);
            return Err(StoreError::Unreachable);
        }
        let deadline = deadline.min(self.shared.options.deadline);
        let start = self.now().steady;
        let decided = timeout(deadline.into(), self.sliced(tag, charges, wanted, start)).await;
        let decided = decided.unwrap_or(Err(StoreError::Timeout));
        let end = self.now();
        let took = start.until(end.steady);
        self.shared.stats.took(took);
        match &decided {
            Ok(outcomes) => {
                self.shared.stats.count(Stat::Decided);
                if wanted == Wanted::Decision {
                    let now = self.shared.store_clock(end);
                    self.shared.refusals.note(charges, outcomes, now);
                }
                self.shared.succeeded(tag);
            }
            Err(error) => {
                self.shared.stats.error(*error);
                self.shared.failed(tag);
            }
        }
        decided
    }

    /// Asks, and takes blocks of sliced limits besides, where it is time to.
    async fn sliced(
        &self,
        tag: &HashTag,
        charges: &Charges<'_>,
        wanted: Wanted,
        sent: Timestamp,
    ) -> Result<Outcomes, StoreError> {
        let slices = &self.shared.slices;
        let plan = match wanted {
            Wanted::Decision => slices.plan(charges, sent),
            Wanted::Look => None,
        };
        let Some(mut plan) = plan else {
            let (mut outcomes, store) = self.exchange(tag, charges, wanted, |_, _| ()).await?;
            if wanted == Wanted::Decision {
                slices.saw(tag, charges, &outcomes, Times { sent, store });
            }
            slices.add_held(charges, wanted, &mut outcomes, sent);
            return Ok(outcomes);
        };
        let late = &mut plan.sent;
        let on_its_way = |flight: &Arc<Flight>, start| {
            *late = Some(Sent {
                shared: Arc::clone(&self.shared),
                tag: tag.clone(),
                flight: Arc::clone(flight),
                start,
            });
        };
        let asked = self.exchange(tag, &plan.charges, wanted, on_its_way);
        let (outcomes, store) = asked.await?;
        let (outcomes, taken) = plan.landed(tag, &outcomes, Times { sent, store });
        give_back::later(&self.shared, taken);
        Ok(outcomes)
    }

    /// Gives back what is held of sliced limits and takes no more: for the end of the process.
    /// Waits no longer than for any message.
    pub async fn return_slices(&self) {
        let all = give_back::all(&self.shared);
        let _ = timeout(self.shared.options.silence.into(), all).await;
    }

    /// The outcomes, and the store's clock. `on_its_way` is told where the answer will be.
    async fn exchange(
        &self,
        tag: &HashTag,
        charges: &Charges<'_>,
        wanted: Wanted,
        mut on_its_way: impl FnMut(&Arc<Flight>, usize),
    ) -> Result<(Outcomes, Timestamp), StoreError> {
        let lane = lanes::of_this_thread(&self.shared);
        let now = self.shared.store_clock(self.now());
        let (flight, start) = lane.enqueue(charges, tag, wanted, now)?;
        on_its_way(&flight, start);
        let reply = flight.landed().await.as_ref().map_err(|error| *error)?;
        if let Some(outcomes) = reply.outcomes(charges, start) {
            return Ok((outcomes, reply.now()));
        }
        // The store's clock shows another calendar window than ours did: once more, by its clock.
        self.shared.stats.count(Stat::CalendarRetries);
        let (flight, start) = lane.enqueue(charges, tag, wanted, reply.now())?;
        on_its_way(&flight, start);
        let reply = flight.landed().await.as_ref().map_err(|error| *error)?;
        let outcomes = reply.outcomes(charges, start);
        let outcomes = outcomes.ok_or(StoreError::Unexpected)?;
        Ok((outcomes, reply.now()))
    }
}
