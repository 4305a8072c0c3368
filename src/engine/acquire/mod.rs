//! Acquire: permits and rate units of several descriptors in one decision, all or nothing.
//!
//! Here are the request, its answer and the decision; `items` has what each item touches, `wait` the
//! requests that are answered later.

mod items;
mod wait;

use std::sync::Arc;

use smallvec::SmallVec;

pub use self::wait::Waits;
use self::{
    items::{Items, without_lease},
    wait::Whom,
};
use crate::{
    engine::{DecideError, Engine, Installed, permits},
    model::{
        lease::{Criticality, Decision, Holder, LeaseId},
        request::Entry,
        time::{Now, Span},
    },
    rules::Domain,
    store::{
        Outcomes, fleet,
        lease::{Answer, Ask, AskError, Naming, SessionId},
        leases::{self, Acquired, Keeper},
    },
};

/// A request for permits.
#[derive(Clone, Debug)]
pub struct AcquireRequest<'a> {
    /// Names the rule tree.
    pub domain: &'a str,
    /// What is asked for; at least one.
    pub items: SmallVec<[AcquireItem<'a>; 2]>,
    /// See [`Ask`].
    pub request_id: &'a [u8],
    /// Who asks.
    pub holder: Holder,
    /// Life of the lease.
    pub ttl: Option<Span>,
    /// Mean hold to start from.
    pub expected_hold: Option<Span>,
    /// How long it may wait.
    pub max_wait: Option<Span>,
    /// How long until the caller gives up.
    pub timeout: Option<Span>,
    /// Who is refused first.
    pub criticality: Criticality,
    /// Place inside the criticality.
    pub cohort: Option<u8>,
    /// Leases that the caller still holds.
    pub adopt: &'a [LeaseId],
    /// Fewer permits will do.
    pub partial: bool,
    /// Decide and change nothing.
    pub dry_run: bool,
    /// Items without a rule refuse the request.
    pub refuse_unknown: bool,
    /// The lease ends with this session.
    pub session: Option<SessionId>,
}

/// One item of a request for permits.
#[derive(Clone, Debug)]
pub struct AcquireItem<'a> {
    /// Finds the rule.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// Permits of the rule's concurrency limit; none asks for none.
    pub permits: Option<u64>,
    /// The caller did not say how many: the rule may know better.
    pub unsaid: bool,
    /// How few permits would do.
    pub least: u64,
    /// Units of the rule's rate limits; none asks for none.
    pub hits: Option<u64>,
}

/// What a request for permits gets.
#[derive(Debug)]
pub struct AcquireAnswer {
    /// The decision. Its items are those of the request, in its order.
    pub answer: Box<Answer>,
    /// What the limits of the items are called, in the order of the request.
    pub names: SmallVec<[Arc<str>; 2]>,
    /// The shared store did not decide.
    pub degraded: bool,
}

/// A request for permits after the first look.
#[derive(Debug)]
pub enum Acquiring {
    /// Decided.
    Now(AcquireAnswer),
    /// It waits for permits.
    Waits(Box<Waits>),
}

/// Why a request for permits cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// As for any request.
    #[error(transparent)]
    Decide(#[from] DecideError),
    /// What the lease book says.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The server stopped while the request waited.
    #[error("the server is stopping")]
    Stopping,
    /// The call's deadline passed while it waited; what it was granted is undone.
    #[error("the deadline passed before the answer could leave")]
    TooLate,
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
