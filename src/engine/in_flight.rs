//! `ShouldRateLimit` on limits of work in flight: Envoy's requests as acquires and releases.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use smallvec::SmallVec;

use crate::{
    algorithm::{Outcome, Retry},
    engine::{
        DecideError, Engine, Installed,
        permits::{Action, Permits, Refused},
        resolve::{Touched, charges},
        verdict::Verdict,
    },
    model::{
        lease::{Cause, Decision, Peer},
        request::Request,
        time::{Now, Span},
    },
    rules::{Domain, Stacking, answer::Scope, concurrency::ConcurrencyRule},
    store::{
        Charge, Charges, Degraded, Outcomes,
        fleet::{self, Fleet},
        lease::{Answer, Ask, Item, ItemState, KeyView, Naming, Undo},
        leases::{Acquired, Keeper, RateUnits},
        redis::StoreError,
    },
};

/// How long a request waits for a release that may be on its way: a sequential client's next
/// request overtakes the release of its previous one.
const RELEASE_ON_ITS_WAY: Span = Span::from_millis(5);

impl Engine {
    /// How the limit on work in flight that a descriptor touches stands; none when it touches none.
    pub(super) async fn look_in_flight(
        &self,
        domain: &Domain,
        touched: &Touched<'_>,
        now: Now,
    ) -> Result<Option<Looked>, DecideError> {
        let Some((rule, permits)) = rule_and_permits(touched) else {
            return Ok(None);
        };
        let keeper = self.leases.keeper(&domain.name, now);
        let flight = Flight {
            engine: self,
            domain,
            keeper: &keeper.map_err(DecideError::Exhausted)?,
            now,
            timeout: None,
            degraded: OnceLock::new(),
            remembered: AtomicBool::new(false),
            peer: None,
        };
        let wanted = match permits.action {
            Action::Take(count) => count,
            Action::Look => 1,
            Action::Release { .. } => 0,
        };
        Ok(Some(flight.look(rule, permits, wanted).await))
    }

    /// Decides a request with permits among what it asks for.
    pub(super) async fn decide_in_flight<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
        mut verdict: Verdict<'r>,
        timeout: Option<Span>,
    ) -> Result<Verdict<'r>, DecideError> {
        let Some(domain) = verdict.domain else {
            return Ok(verdict);
        };
        let keeper = self
            .leases
            .keeper(&domain.name, verdict.now)
            .map_err(DecideError::Exhausted)?;
        let flight = Flight {
            engine: self,
            domain,
            keeper: &keeper,
            now: verdict.now,
            timeout,
            degraded: OnceLock::new(),
            remembered: AtomicBool::new(false),
            peer: request.peer,
        };
        let together = domain.stacking == Stacking::AllOrNothing;
        let (rates, permits) = if together && verdict.resolved.iter().any(Touched::takes_permits) {
            flight.all_or_nothing(&verdict.resolved).await?
        } else {
            flight.each_alone(&verdict.resolved).await?
        };
        verdict.degraded = flight.degraded.get().copied();
        let accounts = self.accounts(installed);
        {
            let charges = charges(domain, &verdict.resolved);
            let remembered = flight.remembered.load(Ordering::Relaxed);
            let touched = &verdict.resolved;
            accounts.record(domain, request, touched, &charges, &rates, remembered);
        }
        let mut rates = rates.into_iter();
        for ((index, touched), decided) in verdict.resolved.iter_mut().enumerate().zip(permits) {
            verdict
                .outcomes
                .extend(rates.by_ref().take(touched.counters.len()));
            if let (
                Some(permits),
                Some(Looked {
                    outcome,
                    limit,
                    refused,
                    ..
                }),
            ) = (&mut touched.permits, decided)
            {
                permits.limit = limit;
                permits.refused = refused;
                verdict.outcomes.push(outcome);
                accounts.record_permits(domain, request, touched, index, &outcome);
            }
        }
        self.conclude(installed, request, &mut verdict);
        Ok(verdict)
    }
}

/// What was decided about the permits of each descriptor.
type Decided = SmallVec<[Option<Looked>; 4]>;

/// How a limit on work in flight stands.
pub(super) struct Looked {
    /// What the permits are told, or would be.
    pub(super) outcome: Outcome,
    /// Permits that there are.
    pub(super) limit: u64,
    /// Why they are refused, or would be.
    pub(super) refused: Option<Refused>,
    /// None after a decision, and when nobody ever asked for one.
    pub(super) estimates: Option<KeyView>,
}

/// One request on its way through the leases of its domain.
struct Flight<'a> {
    engine: &'a Engine,
    domain: &'a Domain,
    keeper: &'a Keeper,
    now: Now,
    timeout: Option<Span>,
    /// Set when the shared store did not decide some of it.
    degraded: OnceLock<Degraded>,
    /// Set when a remembered refusal answered for the rate limits.
    remembered: AtomicBool,
    peer: Option<Peer>,
}

impl Flight<'_> {
    async fn each_alone(
        &self,
        resolved: &[Touched<'_>],
    ) -> Result<(Outcomes, Decided), DecideError> {
        let rates = self.decide(&charges(self.domain, resolved)).await;
        let mut decided = Decided::new();
        for touched in resolved {
            decided.push(match rule_and_permits(touched) {
                Some((rule, permits)) => Some(self.one(rule, permits).await?),
                None => None,
            });
        }
        Ok((rates, decided))
    }

    /// Rate limits on their own.
    async fn decide(&self, charges: &Charges<'_>) -> Outcomes {
        if charges.list.is_empty() {
            return Outcomes::new();
        }
        let store = &self.engine.store;
        let decided = store.decide(self.domain, charges, self.now, self.timeout);
        let decided = decided.await;
        self.note(decided.degraded);
        self.remembered
            .fetch_or(decided.remembered, Ordering::Relaxed);
        decided.outcomes
    }

    /// Permits and rate units in one decision. Releases and looks stand outside of it.
    async fn all_or_nothing(
        &self,
        resolved: &[Touched<'_>],
    ) -> Result<(Outcomes, Decided), DecideError> {
        let mut items = Vec::new();
        let mut name = None;
        let mut decided = Decided::new();
        for touched in resolved {
            let Some((rule, permits)) = rule_and_permits(touched) else {
                decided.push(None);
                continue;
            };
            if let Action::Take(count) = permits.action {
                items.push(Item::many(permits.key, rule, count));
                // One request has one name: Envoy fills it with the request's id everywhere.
                name = name.or(Some((permits, rule)));
                decided.push(None);
            } else {
                decided.push(Some(self.one(rule, permits).await?));
            }
        }
        let charges = charges(self.domain, resolved);
        let (refunds, takes) = split(&charges);
        let refunded = self.decide(&refunds).await;
        let units: SmallVec<[RateUnits; 2]> = takes
            .iter()
            .map(|charge| units(charge, &resolved[charge.descriptor]))
            .collect();
        let Some((first, rule)) = name else {
            return Ok((refunded, decided));
        };
        let ask = self.ask(&items, first, rule);
        let (answer, taken) = self.acquire(&ask, units).await?;
        let mut states = answer.items.iter().enumerate();
        for (touched, decided) in resolved.iter().zip(&mut decided) {
            let takes = touched.takes_permits();
            if let Some((index, state)) = states.by_ref().take(usize::from(takes)).next() {
                let short = answer.limiting.contains(&index) || answer.offender == Some(index);
                *decided = Some(outcome_of(&answer, state, !short));
            }
        }
        let (mut refunded, mut taken) = (refunded.into_iter(), taken.into_iter());
        let in_order = charges.list.iter().filter_map(|charge| {
            if charge.refund {
                refunded.next()
            } else {
                taken.next()
            }
        });
        Ok((in_order.collect(), decided))
    }

    /// One release, look or acquire on its own.
    async fn one(
        &self,
        rule: &Arc<ConcurrencyRule>,
        permits: &Permits,
    ) -> Result<Looked, DecideError> {
        match permits.action {
            Action::Release {
                outcome,
                service_time,
            } => {
                // Envoy's releases are answered OK whatever became of them.
                match self.keeper {
                    Keeper::Book(book) => {
                        let (key, name) = (permits.key, permits.name);
                        let _ = book.release_by(key, name, outcome, service_time, self.now);
                    }
                    Keeper::Fleet(fleet) => {
                        let (key, name) = (permits.key, permits.name);
                        let told = fleet.release_by(key, name, outcome, service_time, self.now);
                        if let Err(error) = told.await {
                            self.without_store(error);
                        }
                    }
                }
                Ok(self.look(rule, permits, 0).await)
            }
            Action::Look => Ok(self.look(rule, permits, 1).await),
            Action::Take(count) => {
                let items = [Item::many(permits.key, rule, count)];
                let ask = self.ask(&items, permits, rule);
                let (answer, _) = self.acquire(&ask, SmallVec::new()).await?;
                let state = answer.items.first().copied().unwrap_or_default();
                Ok(outcome_of(&answer, &state, answer.is_go()))
            }
        }
    }

    /// The first of several reasons is told.
    fn note(&self, degraded: Option<Degraded>) {
        if let Some(degraded) = degraded {
            let _ = self.degraded.set(degraded);
        }
    }

    fn without_store(&self, error: StoreError) {
        let answer = self.domain.on_store_failure;
        self.note(Some(Degraded { answer, error }));
    }

    /// Would so many permits be granted? None always are.
    async fn look(&self, rule: &Arc<ConcurrencyRule>, permits: &Permits, wanted: u64) -> Looked {
        let now = self.now.steady;
        let (view, closed) = match self.keeper {
            Keeper::Book(book) => book.with(self.now, |book| {
                (book.peek(permits.key, now), book.closed_for(rule, now))
            }),
            // Its leases outlive a start: it is never closed.
            Keeper::Fleet(fleet) => match fleet.peek(permits.key, rule).await {
                Ok(view) => (view, Span::ZERO),
                Err(error) => {
                    self.without_store(error);
                    (None, Span::ZERO)
                }
            },
        };
        let (limit, in_flight, remaining, mean_hold) = match &view {
            Some(view) => (view.limit, view.in_flight, view.remaining, view.mean_hold),
            None => (rule.limit.most(), 0, rule.limit.most(), 0.0),
        };
        let remaining = if closed.is_zero() { remaining } else { 0 };
        let short = wanted.saturating_sub(remaining);
        // Little's law: one permit comes back every W ÷ C.
        let each = mean_hold / f64::from(u32::try_from(limit.max(1)).unwrap_or(u32::MAX));
        let retry = if wanted > limit {
            Retry::Never
        } else {
            let short = f64::from(u32::try_from(short).unwrap_or(u32::MAX));
            Retry::After(Span::from_secs_f64(each * short).max(closed))
        };
        let refused = if rule.shared {
            Refused::Shared
        } else {
            Refused::Own
        };
        Looked {
            outcome: outcome(short == 0, in_flight, remaining, retry),
            limit,
            refused: (short > 0).then_some(refused),
            estimates: view,
        }
    }

    fn ask<'i>(&self, items: &'i [Item], permits: &Permits, rule: &ConcurrencyRule) -> Ask<'i> {
        let half = self
            .timeout
            .map(|timeout| Span::from_nanos(timeout.as_nanos() / 2));
        Ask {
            naming: permits.name.map_or(Naming::Anonymous, Naming::Named),
            criticality: permits.criticality,
            tenant: permits.tenant,
            peer: self.peer,
            max_wait: Some(rule.waiting.max_wait.max(RELEASE_ON_ITS_WAY)),
            wait_cap: half.unwrap_or(Span::MAX),
            deadline: self.timeout.map(|timeout| self.now.steady + timeout),
            ..Ask::new(items)
        }
    }

    async fn acquire(
        &self,
        ask: &Ask<'_>,
        rates: SmallVec<[RateUnits; 2]>,
    ) -> Result<(Answer, Outcomes), DecideError> {
        let clock = &self.engine.clock;
        let book = match self.keeper {
            Keeper::Book(book) => book,
            Keeper::Fleet(fleet) => return self.acquire_shared(fleet, ask, rates).await,
        };
        let acquired = book.acquire(ask, rates.clone(), clock, self.now);
        match acquired.map_err(DecideError::Exhausted)? {
            Acquired::Now(answer, outcomes) => Ok((*answer, outcomes)),
            Acquired::Waits(pending) => {
                let answer = pending.answer().await.ok_or(DecideError::TooLate)?;
                let now = clock.now();
                if answer.is_go() && ask.deadline.is_some_and(|deadline| deadline < now.steady) {
                    book.undo(&answer, &rates, Undo::TimedOut, now);
                    return Err(DecideError::TooLate);
                }
                let charges = crate::store::leases::charges(&rates);
                let mut outcomes = self.engine.store.memory().look(&charges, now.wall);
                if answer.is_go() {
                    outcomes
                        .iter_mut()
                        .for_each(|outcome| outcome.allowed = true);
                }
                Ok((*answer, outcomes))
            }
        }
    }
}

impl Flight<'_> {
    async fn acquire_shared(
        &self,
        fleet: &Arc<Fleet>,
        ask: &Ask<'_>,
        rates: SmallVec<[RateUnits; 2]>,
    ) -> Result<(Answer, Outcomes), DecideError> {
        let on_failure = self.domain.on_store_failure;
        let patience = ask.wait_cap;
        let request = fleet::Request::new(ask, rates.clone(), on_failure, patience);
        let request = request.map_err(DecideError::Exhausted)?;
        let taken = fleet.acquire(&request).await;
        let taken = taken.map_err(DecideError::Exhausted)?;
        let now = self.engine.clock.now().steady;
        if taken.answer.is_go() && ask.deadline.is_some_and(|deadline| deadline < now) {
            fleet.undo(&taken.answer, &rates, Undo::TimedOut);
            return Err(DecideError::TooLate);
        }
        self.note(taken.degraded);
        Ok((*taken.answer, taken.outcomes))
    }
}

fn rule_and_permits<'t>(
    touched: &'t Touched<'_>,
) -> Option<(&'t Arc<ConcurrencyRule>, &'t Permits)> {
    let rule = touched.matched?.concurrency.as_ref()?;
    Some((rule, touched.permits.as_deref()?))
}

/// Refunds, which are never part of a bargain, and the rest.
fn split<'t>(charges: &Charges<'t>) -> (Charges<'t>, SmallVec<[Charge<'t>; 8]>) {
    let (refunds, takes): (SmallVec<[Charge<'t>; 8]>, SmallVec<[Charge<'t>; 8]>) = charges
        .list
        .iter()
        .copied()
        .partition(|charge| charge.refund);
    (
        Charges {
            list: refunds,
            ..Charges::default()
        },
        takes,
    )
}

fn units(charge: &Charge<'_>, touched: &Touched<'_>) -> RateUnits {
    RateUnits {
        key: charge.key,
        limit: charge.limit.clone(),
        cost: charge.cost,
        role: charge.role,
        shadow: charge.shadow,
        shared: touched
            .rule()
            .is_some_and(|rule| rule.scope == Scope::Shared),
    }
}

/// The answer of the book as a limit's outcome. Of items that refused together each has its own
/// hint; the one that decides has the one that was booked.
fn outcome_of(answer: &Answer, state: &ItemState, allowed: bool) -> Looked {
    let used_before = state.in_flight.saturating_sub(state.granted);
    let longest = answer.items.iter().map(|item| item.retry_after).max();
    let decides = answer.cause != Some(Cause::Rate) && longest == Some(state.retry_after);
    let wait = if decides {
        answer.retry_after
    } else {
        state.retry_after
    };
    let retry = match (allowed, answer.decision) {
        (true, _) => Retry::After(Span::ZERO),
        (false, Decision::Never) => Retry::Never,
        (false, _) => Retry::After(wait.unwrap_or(Span::from_secs(1))),
    };
    Looked {
        outcome: outcome(allowed, used_before, state.remaining, retry),
        limit: state.limit,
        refused: Refused::of(state).filter(|_| !allowed),
        estimates: None,
    }
}

fn outcome(allowed: bool, used_before: u64, remaining: u64, retry: Retry) -> Outcome {
    let reset = match retry {
        Retry::After(wait) => wait,
        Retry::Never => Span::ZERO,
    };
    Outcome {
        allowed,
        used_before,
        remaining,
        reset,
        retry,
        delay: Span::ZERO,
        more: None,
    }
}
