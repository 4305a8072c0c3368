//! Requests for permits that are not answered at once.

use std::sync::Arc;

use super::{
    items::Items,
    request::{AcquireAnswer, AcquireError},
};
use crate::{
    engine::Engine,
    model::time::{Span, Timestamp},
    rules::{Domain, Stacking},
    store::{
        fleet::{self, Fleet},
        lease::Undo,
        leases::{self, Book, Pending},
    },
};

/// A request that waits: for permits, or for the shared store.
#[derive(Debug)]
pub struct Waits {
    pub(super) whom: Whom,
    pub(super) items: Items,
    pub(super) deadline: Option<Timestamp>,
}

/// Who decides a request that waits.
#[derive(Debug)]
pub(super) enum Whom {
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
                    charges.terms.spread = true;
                    charges.terms.stacking = Stacking::Independent;
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
