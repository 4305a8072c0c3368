//! `ShouldRateLimit` on limits of work in flight: Envoy's requests as acquires and releases.
//!
//! Here a request is taken apart and its parts are decided, together or each alone; `ask` has the
//! way of one acquire, `look` what is told of a limit.

mod ask;
mod look;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use smallvec::SmallVec;

pub(super) use self::look::Looked;
use self::look::outcome_of;
use crate::{
    engine::{
        DecideError, Engine, Installed,
        permits::{Action, Permits},
        resolve::{Touched, charges},
        verdict::Verdict,
    },
    model::{
        lease::Peer,
        request::Request,
        time::{Now, Span},
    },
    rules::{Domain, Stacking, answer::Scope, concurrency::ConcurrencyRule},
    store::{
        Charge, Charges, Degraded, Outcomes,
        lease::Item,
        leases::{Keeper, RateUnits},
        redis::StoreError,
    },
};

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
                .extend(rates.by_ref().take(touched.counters().count()));
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
