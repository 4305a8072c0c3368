//! Acquire: permits and rate units of several descriptors in one decision, all or nothing.
//!
//! Here is the decision; `request` is what it is made of and what it says, `items` has what each item
//! touches, `wait` the requests that are answered later.

mod items;
mod request;
mod wait;

use std::sync::Arc;

use self::{
    items::{Items, without_lease},
    wait::Whom,
};
pub use self::{
    request::{AcquireAnswer, AcquireError, AcquireItem, AcquireRequest},
    wait::Waits,
};
use crate::{
    engine::{DecideError, Engine, Installed, permits},
    model::{
        lease::Decision,
        time::{Now, Span},
    },
    rules::Domain,
    store::{
        Outcomes, fleet,
        lease::{Ask, AskError, Naming},
        leases::{self, Acquired, Keeper},
    },
};

/// A request for permits after the first look.
#[derive(Debug)]
pub enum Acquiring {
    /// Decided.
    Now(AcquireAnswer),
    /// It waits for permits.
    Waits(Box<Waits>),
}

impl Engine {
    /// Decides a request for permits, or puts it into the queue.
    ///
    /// # Errors
    /// What is wrong with the request; nothing was taken.
    pub fn acquire(
        &self,
        installed: &Installed,
        request: &AcquireRequest<'_>,
        now: Now,
    ) -> Result<Acquiring, AcquireError> {
        if request.domain.is_empty() {
            return Err(DecideError::BadRequest("the domain must not be empty").into());
        }
        if request.items.is_empty() {
            return Err(AskError::NoItems.into());
        }
        if !installed.loaded {
            return Err(DecideError::NoRules.into());
        }
        let domain = installed.rules.domain(request.domain);
        let items = self.items_of(domain.map(Arc::as_ref), request);
        let refuses = domain.is_some_and(|domain| domain.refuse_unknown) || request.refuse_unknown;
        if let Some(offender) = items.unknown.filter(|_| refuses) {
            let mut answer = without_lease(Decision::UnknownKey, &items, &Outcomes::new());
            answer.offender = Some(offender);
            return Ok(Acquiring::Now(items.answer(answer)));
        }
        if let (Some(domain), Some(_), true) = (domain, self.store.shared(), items.book.is_empty())
        {
            return Ok(Acquiring::Waits(Box::new(Waits {
                whom: Whom::Rates {
                    domain: Arc::clone(domain),
                    dry_run: request.dry_run,
                    timeout: request.timeout,
                },
                items,
                deadline: None,
            })));
        }
        let Some(domain) = domain.filter(|_| !items.book.is_empty()) else {
            let charges = leases::charges(&items.rates);
            let counters = self.store.memory();
            let outcomes = if request.dry_run {
                counters.look(&charges, now.wall)
            } else {
                counters.decide(&charges, now.wall)
            };
            let answer = items.of_rates(&outcomes, request.dry_run);
            return Ok(Acquiring::Now(items.answer(answer)));
        };
        let keeper = self.leases.keeper(&domain.name, now)?;
        let ask = Ask {
            holder: request.holder.clone(),
            request_id: request.request_id,
            naming: Naming::Issued,
            ttl: request.ttl,
            expected_hold: request.expected_hold,
            max_wait: request.max_wait,
            wait_cap: request.timeout.unwrap_or(Span::MAX),
            deadline: request.timeout.map(|timeout| now.steady + timeout),
            criticality: request.criticality,
            cohort: request.cohort,
            tenant: (!request.holder.id.is_empty())
                .then(|| permits::named(&request.holder.id, &self.hasher)),
            session: request.session,
            adopt: request.adopt,
            partial: request.partial,
            dry_run: request.dry_run,
            unsaid: items.unsaid,
            ..Ask::new(&items.book)
        };
        let deadline = ask.deadline;
        let book = match keeper {
            Keeper::Book(book) => book,
            Keeper::Fleet(fleet) => {
                let patience = request.timeout.map_or(Span::MAX, Span::half);
                let rates = items.rates.clone();
                let on_failure = domain.on_store_failure;
                let asked = fleet::Request::new(&ask, rates, on_failure, patience)?;
                return Ok(Acquiring::Waits(Box::new(Waits {
                    whom: Whom::Fleet(fleet, Box::new(asked)),
                    items,
                    deadline,
                })));
            }
        };
        Ok(
            match book.acquire(&ask, items.rates.clone(), &self.clock, now)? {
                Acquired::Now(answer, outcomes) => {
                    Acquiring::Now(items.answer(items.in_order(*answer, &outcomes)))
                }
                Acquired::Waits(pending) => Acquiring::Waits(Box::new(Waits {
                    whom: Whom::Book(book, pending),
                    items,
                    deadline,
                })),
            },
        )
    }

    fn items_of(&self, domain: Option<&Domain>, request: &AcquireRequest<'_>) -> Items {
        let mut items = Items::default();
        let mut hasher = self.hasher;
        hasher.text(request.domain);
        for (index, item) in request.items.iter().enumerate() {
            let matched = domain.and_then(|domain| domain.find(&item.entries));
            let Some(matched) = matched.filter(|matched| !matched.rule.unlimited) else {
                items.unknown = items.unknown.or(Some(index));
                items.place.push(None);
                items.names.push(Arc::default());
                continue;
            };
            items.add(index, item, &matched, &hasher);
        }
        items
    }
}
