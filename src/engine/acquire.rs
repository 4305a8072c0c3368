//! Acquire: permits and rate units of several descriptors in one decision, all or nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    algorithm::Retry,
    engine::{DecideError, Engine, Installed, permits},
    model::{
        key::KeyHasher,
        lease::{Cause, Criticality, Decision, Holder, LeaseId},
        request::Entry,
        time::{Now, Span, Timestamp},
    },
    rules::{Domain, answer::Scope, lookup::Match},
    store::{
        Outcomes, Role,
        lease::{Answer, Ask, AskError, Item, ItemState, Naming, SessionId, Undo},
        leases::{self, Acquired, Book, Pending, RateUnits},
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
}

/// A request for permits after the first look.
#[derive(Debug)]
pub enum Acquiring {
    /// Decided.
    Now(AcquireAnswer),
    /// It waits for permits.
    Waits(Box<Waits>),
}

/// A request that waits.
#[derive(Debug)]
pub struct Waits {
    pending: Box<Pending>,
    book: Arc<Book>,
    items: Items,
    deadline: Option<Timestamp>,
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

/// How the items of a request map to items of the book and to rate units.
#[derive(Debug, Default)]
struct Items {
    /// Place of the request's item in the book's answer.
    place: SmallVec<[Option<usize>; 2]>,
    names: SmallVec<[Arc<str>; 2]>,
    /// What the book is asked for.
    book: SmallVec<[Item; 2]>,
    rates: SmallVec<[RateUnits; 2]>,
    /// Item of each of `rates`.
    rate_of: SmallVec<[usize; 2]>,
    /// First item without a rule.
    unknown: Option<usize>,
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
        let Some(domain) = domain.filter(|_| !items.book.is_empty()) else {
            let answer = self.rates_only(&items, request.dry_run, now);
            return Ok(Acquiring::Now(items.answer(answer)));
        };
        let book = self.leases.of_domain(&domain.name, now)?;
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
            ..Ask::new(&items.book)
        };
        let deadline = ask.deadline;
        Ok(
            match book.acquire(&ask, items.rates.clone(), &self.clock, now)? {
                Acquired::Now(answer, outcomes) => {
                    Acquiring::Now(items.answer(items.in_order(*answer, &outcomes)))
                }
                Acquired::Waits(pending) => Acquiring::Waits(Box::new(Waits {
                    pending,
                    book,
                    items,
                    deadline,
                })),
            },
        )
    }

    fn items_of(&self, domain: Option<&Domain>, request: &AcquireRequest<'_>) -> Items {
        let mut items = Items::default();
        let mut hasher = self.hasher.clone();
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

    /// Items of rate limits only: there is nothing to hold, hence no lease.
    fn rates_only(&self, items: &Items, dry_run: bool, now: Now) -> Answer {
        let charges = leases::charges(&items.rates);
        let counters = self.store.memory();
        let outcomes = if dry_run {
            counters.look(&charges, now.wall)
        } else {
            counters.decide(&charges, now.wall)
        };
        let refused = charges.are_refused(&outcomes);
        let never = outcomes
            .iter()
            .any(|o| !o.allowed && o.retry == Retry::Never);
        let decision = match (refused, never) {
            (true, true) => Decision::Never,
            (true, false) => Decision::Refused,
            (false, _) if dry_run => Decision::WouldGrant,
            (false, _) => Decision::Granted,
        };
        let mut answer = without_lease(decision, items, &outcomes);
        if refused {
            answer.cause = Some(Cause::Rate);
            let short = leases::rate_short(&items.rates, &outcomes);
            answer.retry_after = short.and_then(|short| short.retry_after);
            answer.shared = short.is_some_and(|short| short.shared);
        }
        answer
    }
}

impl Waits {
    /// The answer, when it is there.
    ///
    /// # Cancel safety
    /// Dropped before that, the request leaves the queue, and a grant that was made meanwhile is
    /// undone.
    ///
    /// # Errors
    /// The server stops.
    pub async fn answer(self, engine: &Engine) -> Result<AcquireAnswer, AcquireError> {
        let Self {
            pending,
            book,
            items,
            deadline,
        } = self;
        let answer = pending.answer().await.ok_or(AcquireError::Stopping)?;
        let now = engine.clock.now();
        if answer.is_go() && deadline.is_some_and(|deadline| deadline < now.steady) {
            book.undo(&answer, &items.rates, Undo::TimedOut, now);
            return Err(AcquireError::TooLate);
        }
        let charges = leases::charges(&items.rates);
        let outcomes = engine.store.memory().look(&charges, now.wall);
        let answer = items.in_order(*answer, &outcomes);
        Ok(items.answer(answer))
    }
}

impl Items {
    fn add(
        &mut self,
        index: usize,
        item: &AcquireItem<'_>,
        matched: &Match<'_>,
        hasher: &KeyHasher,
    ) {
        let rule = matched.rule;
        let mut name: Arc<str> = rule.path.as_str().into();
        let mut place = None;
        if let (Some(concurrency), Some(permits)) = (&rule.concurrency, item.permits) {
            place = Some(self.book.len());
            name = concurrency.name.clone().unwrap_or(name);
            self.book.push(Item {
                key: permits::key_of(matched, &item.entries, hasher),
                rule: Some(Arc::clone(concurrency)),
                permits,
                least: item.least,
            });
        }
        self.place.push(place);
        self.names.push(name);
        let Some(cost) = item.hits else { return };
        let mut hasher = hasher.clone();
        for (step, entry) in matched.steps.iter().zip(&item.entries) {
            step.hash(*entry, &mut hasher);
        }
        for limit in &rule.limits {
            let mut hasher = hasher.clone();
            hasher.number(limit.discriminator);
            self.rates.push(RateUnits {
                key: hasher.finish(),
                limit: limit.clone(),
                cost,
                role: Role::Enforced,
                shadow: rule.shadow_mode,
                shared: rule.scope == Scope::Shared,
            });
            self.rate_of.push(index);
        }
    }

    /// The book's answer with its items in the order of the request, and those of rate limits put
    /// between.
    fn in_order(&self, mut answer: Answer, outcomes: &Outcomes) -> Answer {
        let of_book = std::mem::take(&mut answer.items);
        let from_book = |index: usize| self.place.iter().position(|place| *place == Some(index));
        answer.limiting = answer
            .limiting
            .iter()
            .filter_map(|index| from_book(*index))
            .collect();
        answer.offender = answer.offender.and_then(from_book);
        for (index, place) in self.place.iter().enumerate() {
            let state = place.and_then(|place| of_book.get(place).copied());
            let own = self
                .rate_of
                .iter()
                .zip(outcomes)
                .filter(|(item, _)| **item == index);
            let mut rates = own.map(|(_, outcome)| outcome);
            let left = rates.clone().map(|outcome| outcome.remaining).min();
            if rates.any(|outcome| !outcome.allowed) && !answer.limiting.contains(&index) {
                answer.limiting.push(index);
            }
            answer.items.push(state.unwrap_or_else(|| ItemState {
                remaining: left.unwrap_or_default(),
                ..ItemState::default()
            }));
        }
        answer
    }

    fn answer(&self, answer: Answer) -> AcquireAnswer {
        AcquireAnswer {
            answer: Box::new(answer),
            names: self.names.clone(),
        }
    }
}

fn without_lease(decision: Decision, items: &Items, outcomes: &Outcomes) -> Answer {
    items.in_order(Answer::new(decision), outcomes)
}
