//! A request for permits, put to whoever keeps the leases of its domain.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Flight;
use crate::{
    engine::{DecideError, permits::Permits},
    model::time::Span,
    rules::concurrency::ConcurrencyRule,
    store::{
        Outcomes,
        fleet::{self, Fleet},
        lease::{Answer, Ask, Item, Naming, Undo},
        leases::{self, Acquired, Keeper, RateUnits},
    },
};

/// How long a request waits for a release that may be on its way: a sequential client's next
/// request overtakes the release of its previous one.
const RELEASE_ON_ITS_WAY: Span = Span::from_millis(5);

impl Flight<'_> {
    pub(super) fn ask<'i>(
        &self,
        items: &'i [Item],
        permits: &Permits,
        rule: &ConcurrencyRule,
    ) -> Ask<'i> {
        let half = self.timeout.map(Span::half);
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

    pub(super) async fn acquire(
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
                let charges = leases::charges(&rates);
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
