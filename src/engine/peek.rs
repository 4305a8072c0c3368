//! Looking at limits and forgetting what was used: nothing here counts, neither units nor
//! statistics.

use smallvec::SmallVec;

use crate::{
    engine::{
        DecideError, Engine, Installed, check,
        resolve::{Touched, charges, resolve},
        verdict::Verdict,
    },
    model::{key::CounterKey, request::Request},
    store::{lease::KeyView, leases::Keeper},
};

/// What a look shows.
#[derive(Debug)]
pub struct Peeked<'r> {
    /// What the answer to the request would be. Its outcomes tell what is used and left as it
    /// stands, and [`Outcome::more`](crate::algorithm::Outcome::more).
    pub verdict: Verdict<'r>,
    /// By descriptor: the estimates of its limit on work in flight, if it has one that anybody ever
    /// asked for permits.
    pub in_flight: SmallVec<[Option<KeyView>; 4]>,
}

/// What a reset found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Counters of rate limits.
    pub counters: u64,
    /// Limits on work in flight.
    pub in_flight: u64,
}

impl Engine {
    /// What [`Engine::decide`] would answer if the request came now. Takes nothing and gives
    /// nothing back.
    pub async fn peek<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
    ) -> Result<Peeked<'r>, DecideError> {
        let mut verdict = self.touched_by(installed, request)?;
        let mut in_flight = SmallVec::from_elem(None, request.descriptors.len());
        if let Some(domain) = verdict.domain {
            let mut charges = charges(domain, &verdict.resolved);
            charges.terms.tell_more = true;
            let looked = self.store.look(domain, &charges, verdict.now).await;
            drop(charges);
            verdict.degraded = looked.degraded;
            let mut rates = looked.outcomes.into_iter();
            for (touched, estimates) in verdict.resolved.iter_mut().zip(&mut in_flight) {
                let own = rates.by_ref().take(touched.counters().count());
                verdict.outcomes.extend(own);
                let looked = self.look_in_flight(domain, touched, verdict.now).await?;
                if let (Some(permits), Some(looked)) = (&mut touched.permits, looked) {
                    permits.limit = looked.limit;
                    permits.refused = looked.refused;
                    verdict.outcomes.push(looked.outcome);
                    *estimates = looked.estimates;
                }
            }
            verdict.conclude();
        }
        Ok(Peeked { verdict, in_flight })
    }

    /// Forgets every counter that the request's descriptors touch, whatever their cost: what was
    /// used is not used any more. Of limits on work in flight it forgets the estimates; leases are
    /// revoked only with `revoke`.
    pub async fn reset(
        &self,
        installed: &Installed,
        request: &Request<'_>,
        revoke: bool,
    ) -> Result<Forgotten, DecideError> {
        let verdict = self.touched_by(installed, request)?;
        let counters = verdict.resolved.iter().flat_map(Touched::counters);
        let keys: Vec<CounterKey> = counters.map(|counter| counter.key).collect();
        let mut forgotten = Forgotten::default();
        let Some(domain) = verdict.domain else {
            return Ok(forgotten);
        };
        forgotten.counters = self.store.reset(domain, &keys).await?;
        let now = verdict.now;
        for permits in verdict.resolved.iter().filter_map(|t| t.permits.as_ref()) {
            let keeper = self.leases.keeper(&domain.name, now);
            let there = match keeper.map_err(DecideError::Exhausted)? {
                Keeper::Book(book) => {
                    book.with(now, |book| book.reset(permits.key, revoke, now.steady))
                }
                Keeper::Fleet(fleet) => fleet.reset(permits.key, revoke).await?,
            };
            forgotten.in_flight += u64::from(there);
        }
        Ok(forgotten)
    }

    /// A verdict without outcomes.
    fn touched_by<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
    ) -> Result<Verdict<'r>, DecideError> {
        check(installed, request)?;
        let domain = installed.rules.domain(request.domain).map(AsRef::as_ref);
        let mut verdict = Verdict::new();
        verdict.begin(domain, request.descriptors.len(), self.clock.now());
        if let Some(domain) = domain {
            let quota = self.options.quota_mode;
            resolve(domain, request, &self.hasher, quota, &mut verdict.resolved);
        }
        Ok(verdict)
    }
}
