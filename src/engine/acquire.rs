//! Acquire: permits and rate units of several descriptors in one decision, all or nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    algorithm::Retry,
    engine::{DecideError, Engine, Installed, permits},
    model::{
        key::{CounterKey, KeyHasher},
        lease::{Cause, Criticality, Decision, Holder, LeaseId},
        request::Entry,
        time::{Now, Span, Timestamp},
    },
    rules::{Domain, Stacking, answer::Scope, limit::Limit, lookup::Match},
    store::{
        Outcomes, Role,
        fleet::{self, Fleet},
        lease::{Answer, Ask, AskError, Item, ItemState, Naming, SessionId, Undo},
        leases::{self, Acquired, Book, Keeper, Pending, RateUnits},
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

/// A request that waits: for permits, or for the shared store.
#[derive(Debug)]
pub struct Waits {
    whom: Whom,
    items: Items,
    deadline: Option<Timestamp>,
}

/// Who decides a request that waits.
#[derive(Debug)]
enum Whom {
    /// A book of this process.
    Book(Arc<Book>, Box<Pending>),
    /// The shared store.
    Fleet(Arc<Fleet>, Box<fleet::Request>),
    /// The shared store, about rate limits alone.
    Rates {
        domain: Arc<Domain>,
        dry_run: bool,
        timeout: Option<Span>,
    },
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
    /// See [`Ask::unsaid`].
    unsaid: u32,
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
                let patience = request.timeout.map_or(Span::MAX, half);
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

impl Waits {
    /// The answer, when it is there.
    ///
    /// # Cancel safety
    /// Dropped before that, the request leaves the queue, and a grant that was made meanwhile is
    /// undone.
    ///
    /// # Errors
    /// The server stops, or what is wrong with the request.
    pub async fn answer(self, engine: &Engine) -> Result<AcquireAnswer, AcquireError> {
        let Self {
            whom,
            items,
            deadline,
        } = self;
        let too_late = || {
            let now = engine.clock.now();
            deadline.is_some_and(|deadline| deadline < now.steady)
        };
        match whom {
            Whom::Book(book, pending) => {
                let answer = pending.answer().await.ok_or(AcquireError::Stopping)?;
                let now = engine.clock.now();
                if answer.is_go() && too_late() {
                    book.undo(&answer, &items.rates, Undo::TimedOut, now);
                    return Err(AcquireError::TooLate);
                }
                let charges = leases::charges(&items.rates);
                let outcomes = engine.store.memory().look(&charges, now.wall);
                let answer = items.in_order(*answer, &outcomes);
                Ok(items.answer(answer))
            }
            Whom::Fleet(fleet, request) => {
                let taken = fleet.acquire(&request).await?;
                if taken.answer.is_go() && too_late() {
                    fleet.undo(&taken.answer, &items.rates, Undo::TimedOut);
                    return Err(AcquireError::TooLate);
                }
                let answer = items.in_order(*taken.answer, &taken.outcomes);
                Ok(AcquireAnswer {
                    degraded: taken.degraded.is_some(),
                    ..items.answer(answer)
                })
            }
            Whom::Rates {
                domain,
                dry_run,
                timeout,
            } => {
                let mut charges = leases::charges(&items.rates);
                if domain.spread {
                    charges.spread = true;
                    charges.stacking = Stacking::Independent;
                }
                let now = engine.clock.now();
                let decided = if dry_run {
                    engine.store.look(&domain, &charges, now).await
                } else {
                    engine.store.decide(&domain, &charges, now, timeout).await
                };
                let answer = items.of_rates(&decided.outcomes, dry_run);
                Ok(AcquireAnswer {
                    degraded: decided.degraded.is_some(),
                    ..items.answer(answer)
                })
            }
        }
    }
}

fn half(timeout: Span) -> Span {
    Span::from_nanos(timeout.as_nanos() / 2)
}

/// With the values of the entries added, as far as they name counters.
fn hashed(matched: &Match<'_>, entries: &[Entry<'_>], hasher: &KeyHasher) -> KeyHasher {
    let mut hasher = *hasher;
    for (step, entry) in matched.steps.iter().zip(entries) {
        step.hash(*entry, &mut hasher);
    }
    hasher
}

fn counter_of(limit: &Limit, mut hashed: KeyHasher) -> CounterKey {
    hashed.number(limit.discriminator);
    hashed.finish()
}

impl AcquireItem<'_> {
    /// The first counter that it touches, and how much it asks of it.
    pub(super) fn asks(
        &self,
        matched: &Match<'_>,
        hasher: &KeyHasher,
    ) -> Option<(CounterKey, u64)> {
        let rule = matched.rule;
        if let (Some(limit), Some(hits)) = (rule.limits.first(), self.hits) {
            let hashed = hashed(matched, &self.entries, hasher);
            return Some((counter_of(limit, hashed), hits));
        }
        rule.concurrency.as_ref()?;
        Some((
            permits::key_of(matched, &self.entries, hasher),
            self.permits?,
        ))
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
            let bit = u32::try_from(self.book.len()).ok();
            let bit = bit.and_then(|place| 1_u32.checked_shl(place));
            self.unsaid |= bit.filter(|_| item.unsaid).unwrap_or(0);
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
        let hasher = hashed(matched, &item.entries, hasher);
        for limit in &rule.limits {
            self.rates.push(RateUnits {
                key: counter_of(limit, hasher),
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

    /// Items of rate limits only: there is nothing to hold, hence no lease.
    fn of_rates(&self, outcomes: &Outcomes, dry_run: bool) -> Answer {
        let charges = leases::charges(&self.rates);
        let refused = charges.are_refused(outcomes);
        let never = outcomes
            .iter()
            .any(|o| !o.allowed && o.retry == Retry::Never);
        let decision = match (refused, never) {
            (true, true) => Decision::Never,
            (true, false) => Decision::Refused,
            (false, _) if dry_run => Decision::WouldGrant,
            (false, _) => Decision::Granted,
        };
        let mut answer = without_lease(decision, self, outcomes);
        if refused {
            answer.cause = Some(Cause::Rate);
            let short = leases::rate_short(&self.rates, outcomes);
            answer.retry_after = short.and_then(|short| short.retry_after);
            answer.shared = short.is_some_and(|short| short.shared);
        }
        answer
    }

    fn answer(&self, answer: Answer) -> AcquireAnswer {
        AcquireAnswer {
            answer: Box::new(answer),
            names: self.names.clone(),
            degraded: false,
        }
    }
}

fn without_lease(decision: Decision, items: &Items, outcomes: &Outcomes) -> Answer {
    items.in_order(Answer::new(decision), outcomes)
}
