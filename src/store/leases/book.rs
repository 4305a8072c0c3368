//! The book of one domain under its lock, with those who wait for what it says.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    pending::Pending,
    rates::{RateUnits, WaitingRates, charges, rate_short},
};
use crate::{
    model::{
        key::CounterKey,
        lease::{Decision, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Clock, Now, Span, Timestamp},
    },
    rules::Stacking,
    store::{
        charges::Outcomes,
        lease::{
            Answer, Ask, AskError, Checked, Event, LeaseBook, Opened, Release, Reply, Revoked,
            SessionId, Stream, Ticket, Undo,
        },
        memory::MemoryStore,
    },
};

/// The leases of one domain.
#[derive(Debug)]
pub struct Book {
    counters: Arc<MemoryStore>,
    due: Arc<Notify>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    book: LeaseBook,
    waiting: HashMap<Ticket, Waiting>,
    /// Rate units that may have to be given back when their lease ends.
    hanging: HashMap<LeaseId, Hanging>,
    sessions: HashMap<SessionId, mpsc::Sender<Revoked>>,
}

/// A call that waits for permits.
#[derive(Debug)]
pub(super) struct Waiting {
    sender: oneshot::Sender<Box<Answer>>,
    pub(super) rates: SmallVec<[RateUnits; 2]>,
    /// How `rates` stand, once they were taken.
    pub(super) taken: Outcomes,
}

/// Rate units of a lease, each with the date at which it has come back by itself: nothing that was
/// used when it was taken is used any more.
type Hanging = SmallVec<[(RateUnits, Timestamp); 2]>;

/// What a request for permits gets.
#[derive(Debug)]
#[must_use]
#[expect(clippy::large_enum_variant, reason = "waiting is the exception")]
pub enum Acquired {
    /// The answer, and how the rate limits of the request stand: one outcome for each of its
    /// [`RateUnits`].
    Now(Box<Answer>, Outcomes),
    /// It waits.
    Waits(Box<Pending>),
}

impl Book {
    pub(super) fn new(book: LeaseBook, counters: &Arc<MemoryStore>, due: &Arc<Notify>) -> Self {
        Self {
            counters: Arc::clone(counters),
            due: Arc::clone(due),
            inner: Mutex::new(Inner {
                book,
                waiting: HashMap::new(),
                hanging: HashMap::new(),
                sessions: HashMap::new(),
            }),
        }
    }

    /// Decides a request for permits together with its rate units: all or nothing.
    ///
    /// # Errors
    /// What cannot be decided; nothing was taken.
    pub fn acquire(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        rates: SmallVec<[RateUnits; 2]>,
        clock: &Clock,
        now: Now,
    ) -> Result<Acquired, AskError> {
        let mut inner = self.inner.lock();
        self.turn(&mut inner, now);
        let reply = match inner.book.check(ask, now.steady)? {
            Checked::Decided(reply) => (reply, self.look(&rates, now)),
            Checked::Open(plan) if plan.fits() => {
                let outcomes = if ask.dry_run {
                    self.look(&rates, now)
                } else {
                    self.counters.decide(&charges(&rates), now.wall)
                };
                match rate_short(&rates, &outcomes) {
                    None => (Reply::Now(Box::new(inner.book.commit(&plan))), outcomes),
                    short => (inner.book.refuse(*plan, short), outcomes),
                }
            }
            Checked::Open(plan) => {
                let outcomes = self.look(&rates, now);
                (
                    inner.book.refuse(*plan, rate_short(&rates, &outcomes)),
                    outcomes,
                )
            }
        };
        if let (Reply::Now(answer), outcomes) = &reply {
            inner.hang(answer, &rates, outcomes, now);
        }
        self.tell(&mut inner, now);
        Ok(match reply {
            (Reply::Now(answer), outcomes) => Acquired::Now(answer, outcomes),
            (Reply::Waits(ticket), _) => {
                let (sender, receiver) = oneshot::channel();
                inner.waiting.insert(
                    ticket,
                    Waiting {
                        sender,
                        rates: rates.clone(),
                        taken: Outcomes::new(),
                    },
                );
                drop(inner);
                self.due.notify_one();
                let book = Arc::clone(self);
                let clock = clock.clone();
                Acquired::Waits(Box::new(Pending {
                    book,
                    clock,
                    ticket,
                    rates,
                    receiver,
                    answered: false,
                }))
            }
        })
    }

    /// Ends a lease by its id.
    pub fn release(&self, release: &Release<'_>, now: Now) -> ReleaseStatus {
        self.with(now, |book| book.release(release, now.steady))
    }

    /// Ends the lease of this name, or the oldest one without a name.
    pub fn release_by(
        &self,
        key: CounterKey,
        name: Option<CounterKey>,
        outcome: Outcome,
        service_time: Option<Span>,
        now: Now,
    ) -> ReleaseStatus {
        self.with(now, |book| match name {
            Some(name) => book.release_named(key, name, outcome, service_time, now.steady),
            None => book.release_anonymous(key, outcome, service_time, now.steady),
        })
    }

    /// Prolongs a lease.
    pub fn renew(
        &self,
        id: &LeaseId,
        holder: Option<&str>,
        ttl: Option<Span>,
        now: Now,
    ) -> RenewStatus {
        self.with(now, |book| book.renew(id, holder, ttl, now.steady))
    }

    /// Takes a granted answer back, rate units and all: it never left. Another call that was
    /// answered with the same lease keeps both.
    pub fn undo(&self, answer: &Answer, rates: &[RateUnits], why: Undo, now: Now) {
        let undone = self.with(now, |book| book.undo(&answer.leases, why, now.steady));
        if undone && answer.is_go() {
            self.give_back(rates, now);
        }
    }

    fn give_back(&self, rates: &[RateUnits], now: Now) {
        let mut charges = charges(rates);
        charges.terms.stacking = Stacking::Independent;
        charges
            .list
            .iter_mut()
            .for_each(|charge| charge.refund = true);
        self.counters.decide(&charges, now.wall);
    }

    pub(super) fn open_session(
        &self,
        token: Option<u128>,
        grace: Span,
        sender: mpsc::Sender<Revoked>,
        now: Now,
    ) -> Opened {
        let mut inner = self.inner.lock();
        let resumed = token.and_then(|token| inner.book.resume_session(token, now.steady));
        let opened = match resumed {
            Some(opened) => opened,
            None => inner.book.open_session(grace, now.steady),
        };
        let stream = opened.stream;
        inner.sessions.insert(stream.session, sender);
        opened
    }

    /// Releases all leases of the session of this stream at once.
    pub(super) fn close_session(&self, stream: Stream, now: Now) {
        self.inner.lock().sessions.remove(&stream.session);
        self.with(now, |book| book.close_session(stream, now.steady));
    }

    /// The stream broke.
    pub(super) fn lose_session(&self, stream: Stream, now: Now) {
        self.with(now, |book| book.lose_session(stream, now.steady));
        // A grace may have begun.
        self.due.notify_one();
    }

    /// Takes a request out of the queue; false when it was answered before.
    pub(super) fn leave(&self, ticket: Ticket, now: Now) -> bool {
        let mut inner = self.inner.lock();
        inner.waiting.remove(&ticket);
        inner.book.leave(ticket, now.steady)
    }

    /// Reads or changes the book; whoever is concerned is told before the lock is let go.
    pub fn with<T>(&self, now: Now, act: impl FnOnce(&mut LeaseBook) -> T) -> T {
        let mut inner = self.inner.lock();
        let result = act(&mut inner.book);
        self.turn(&mut inner, now);
        self.tell(&mut inner, now);
        result
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.inner.lock().book.next_due()
    }

    fn turn(&self, inner: &mut Inner, now: Now) {
        let Inner { book, waiting, .. } = inner;
        book.turn(
            now.steady,
            &mut WaitingRates {
                counters: &self.counters,
                waiting,
                now,
            },
        );
    }

    /// Brings what happened to those who want to know it.
    fn tell(&self, inner: &mut Inner, now: Now) {
        for event in inner.book.take_events() {
            match event {
                Event::Settled { ticket, answer } => {
                    if let Some(waiting) = inner.waiting.remove(&ticket) {
                        if answer.decision == Decision::Granted {
                            inner.hang(&answer, &waiting.rates, &waiting.taken, now);
                        }
                        // Whoever is gone undoes the grant when it lets go of its `Pending`.
                        let _ = waiting.sender.send(answer);
                    }
                }
                Event::Revoked { session, revoked } => {
                    let gone = match inner.sessions.get(&session) {
                        Some(sender) => sender.try_send(revoked).is_err(),
                        None => false,
                    };
                    if gone {
                        // Too slow to listen: its stream ends, and its leases with it.
                        inner.sessions.remove(&session);
                    }
                }
                Event::RatesSettled { lease, refund } => {
                    let hanging = inner.hanging.remove(&lease).filter(|_| refund);
                    let used = hanging.into_iter().flatten();
                    let used = used.filter(|(_, back)| *back > now.wall);
                    let units: SmallVec<[RateUnits; 2]> = used.map(|(units, _)| units).collect();
                    self.give_back(&units, now);
                }
                Event::LimitChanged { path, change, .. } => {
                    tracing::info!(limit = %path, %change, "limit changed");
                }
            }
        }
    }

    fn look(&self, rates: &[RateUnits], now: Now) -> Outcomes {
        self.counters.look(&charges(rates), now.wall)
    }
}

impl Inner {
    /// Remembers the rate units of a new lease, if they may have to be given back.
    fn hang(&mut self, answer: &Answer, rates: &[RateUnits], outcomes: &Outcomes, now: Now) {
        let Some(lease) = answer.rates_hang_on else {
            return;
        };
        let taken = rates.iter().zip(outcomes);
        let taken = taken.filter(|(units, outcome)| outcome.allowed && units.cost > 0);
        let units: Hanging = taken
            .map(|(units, outcome)| (units.clone(), now.wall + outcome.reset))
            .collect();
        if !units.is_empty() {
            self.hanging.insert(lease, units);
        }
    }
}
