//! The lease books of this process, one per domain, and who waits for their answers.
//!
//! Lock order: a book first, then shards of counters in ascending order. A request with permits
//! and rate units is decided while both are held, so that it takes all or nothing. Nothing is
//! awaited under a lock: whoever waits for a permit waits for a message.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::sleep,
};

use crate::{
    algorithm::Retry,
    model::{
        key::CounterKey,
        lease::{Decision, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Clock, Now, Span, Timestamp},
    },
    rules::{Rules, Stacking, limit::Limit},
    store::{
        Charge, Charges, Outcomes, Role,
        lease::{
            Answer, Ask, AskError, Bounds, Checked, Counts, Event, Identity, LeaseBook, LimitView,
            Opened, RateShort, Rates, Release, Reply, Revoked, SessionId, Stream, Ticket, Undo,
        },
        memory::MemoryStore,
    },
};

/// Most domains that have leases: a domain comes from the rules, so this is far away.
const MOST_BOOKS: u16 = u16::MAX;
/// Revocations that a session may be behind with before it is closed.
const REVOCATIONS: usize = 256;

/// All books.
#[derive(Debug)]
pub struct Leases {
    counters: Arc<MemoryStore>,
    books: DashMap<Arc<str>, Arc<Book>>,
    by_number: DashMap<u16, Arc<Book>>,
    next: AtomicU16,
    boot: u32,
    bounds: Bounds,
    /// Leases from before are not known.
    started: Timestamp,
    /// Something is due earlier than before.
    due: Arc<Notify>,
    /// By when holders have to have moved, once the server stops.
    stopping: watch::Sender<Option<Timestamp>>,
}

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
struct Waiting {
    sender: oneshot::Sender<Box<Answer>>,
    rates: SmallVec<[RateUnits; 2]>,
    /// How `rates` stand, once they were taken.
    taken: Outcomes,
}

/// Rate units of a lease, each with the date at which it has come back by itself: nothing that was
/// used when it was taken is used any more.
type Hanging = SmallVec<[(RateUnits, Timestamp); 2]>;

/// Units of a rate limit that belong to a request for permits, owned so that they can wait.
#[derive(Clone, Debug)]
pub struct RateUnits {
    /// The counter.
    pub key: CounterKey,
    /// What it is held to.
    pub limit: Limit,
    /// How many.
    pub cost: u64,
    /// What a refusal means.
    pub role: Role,
    /// A refusal is only counted.
    pub shadow: bool,
    /// Several callers share the limit.
    pub shared: bool,
}

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

/// A place in the queue. Dropped before the answer was taken, it frees the place, and undoes the
/// grant if there is one already.
#[derive(Debug)]
pub struct Pending {
    book: Arc<Book>,
    clock: Clock,
    ticket: Ticket,
    rates: SmallVec<[RateUnits; 2]>,
    receiver: oneshot::Receiver<Box<Answer>>,
    answered: bool,
}

/// A stream that carries a session. Dropped without [`SessionGuard::goodbye`], the session is lost.
#[derive(Debug)]
pub struct SessionGuard {
    book: Arc<Book>,
    clock: Clock,
    stream: Stream,
    said_goodbye: bool,
}

impl Leases {
    /// No leases yet. Rate units of requests for permits are counted in `counters`. Limits whose
    /// rule says so grant nothing new for a while after `started`, see
    /// [`crate::rules::concurrency::OnRestart`].
    pub fn new(counters: Arc<MemoryStore>, bounds: Bounds, started: Timestamp) -> Self {
        Self {
            counters,
            books: DashMap::new(),
            by_number: DashMap::new(),
            next: AtomicU16::new(0),
            boot: rand::random(),
            bounds,
            started,
            due: Arc::default(),
            stopping: watch::Sender::new(None),
        }
    }

    /// The life of this process, as lease ids tell it.
    pub fn boot(&self) -> u32 {
        self.boot
    }

    /// The book of a domain that the rules know.
    ///
    /// # Errors
    /// [`AskError::BookFull`] when there are too many domains.
    pub fn of_domain(&self, domain: &Arc<str>, now: Now) -> Result<Arc<Book>, AskError> {
        if let Some(book) = self.books.get(domain) {
            return Ok(Arc::clone(&book));
        }
        let book = self
            .books
            .entry(Arc::clone(domain))
            .or_try_insert_with(|| {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                if number == MOST_BOOKS {
                    return Err(AskError::BookFull);
                }
                let identity = Identity {
                    boot: self.boot,
                    book: number,
                };
                let mut book = LeaseBook::new(identity, self.bounds, rand::random(), now.steady);
                book.set_draining(self.stopping.borrow().is_some());
                book.follow_unknown(self.started);
                let book = Arc::new(Book {
                    counters: Arc::clone(&self.counters),
                    due: Arc::clone(&self.due),
                    inner: Mutex::new(Inner {
                        book,
                        waiting: HashMap::new(),
                        hanging: HashMap::new(),
                        sessions: HashMap::new(),
                    }),
                });
                self.by_number.insert(number, Arc::clone(&book));
                Ok(book)
            })?;
        Ok(Arc::clone(&book))
    }

    /// Ends a lease, whichever domain it is of.
    pub fn release(&self, release: &Release<'_>, now: Now) -> ReleaseStatus {
        match self.of_lease(&release.id) {
            Ok(book) => book.release(release, now),
            Err(OtherBoot(true)) => ReleaseStatus::OtherBoot,
            Err(OtherBoot(false)) => ReleaseStatus::Unknown,
        }
    }

    /// Prolongs a lease, whichever domain it is of.
    pub fn renew(
        &self,
        id: &LeaseId,
        holder: Option<&str>,
        ttl: Option<Span>,
        now: Now,
    ) -> RenewStatus {
        match self.of_lease(id) {
            Ok(book) => book.renew(id, holder, ttl, now),
            Err(OtherBoot(true)) => RenewStatus::OtherBoot,
            Err(OtherBoot(false)) => RenewStatus::Unknown,
        }
    }

    fn of_lease(&self, id: &LeaseId) -> Result<Arc<Book>, OtherBoot> {
        if id.boot != self.boot {
            return Err(OtherBoot(true));
        }
        self.by_number
            .get(&id.book)
            .map(|book| Arc::clone(&book))
            .ok_or(OtherBoot(false))
    }

    /// Takes over other versions of the rules: leases stay, raised limits serve who waits.
    pub fn reload(&self, rules: &Rules, now: Now) {
        let mut by_path = HashMap::new();
        for rule in rules.rules() {
            if let Some(concurrency) = &rule.concurrency {
                by_path.insert(Arc::clone(&concurrency.path), Arc::clone(concurrency));
            }
        }
        for book in self.all() {
            book.with(now, |book| {
                book.reload(|path| by_path.get(path).map(Arc::clone), now.steady);
            });
        }
    }

    /// The server stops: see [`LeaseBook::set_draining`]. Sessions are told to move by then.
    pub fn drain(&self, move_by: Timestamp, now: Now) {
        self.stopping.send_replace(Some(move_by));
        for book in self.all() {
            book.with(now, |book| book.set_draining(true));
        }
    }

    /// Tells when the server begins to stop, and by when sessions have to have moved.
    pub fn stopping(&self) -> watch::Receiver<Option<Timestamp>> {
        self.stopping.subscribe()
    }

    /// Ends what is due and tells who waits. What is due is exact at any access; this only serves
    /// those that nobody else's call would serve.
    pub fn turn(&self, now: Now) {
        for book in self.all() {
            book.with(now, |_| ());
        }
    }

    /// Calls [`Leases::turn`] whenever something is due, for ever.
    pub async fn drive(&self, clock: &Clock) {
        loop {
            let notified = self.due.notified();
            let next = self.next_due();
            let now = clock.now();
            match next {
                Some(due) => {
                    tokio::select! {
                        () = sleep(now.steady.until(due).into()) => {}
                        () = notified => {}
                    }
                }
                None => notified.await,
            }
            self.turn(clock.now());
        }
    }

    /// When something is due next; see [`LeaseBook::next_due`].
    pub fn next_due(&self) -> Option<Timestamp> {
        self.all().iter().filter_map(|book| book.next_due()).min()
    }

    /// Frees memory, a few keys of each book at a time.
    pub fn sweep(&self, keys: usize, now: Now) {
        for book in self.all() {
            book.with(now, |book| book.sweep(keys, now.steady));
        }
    }

    /// Every limit of every domain, for the metrics.
    pub fn limits(&self, now: Now) -> Vec<(Arc<str>, Vec<LimitView>)> {
        let books = self.books.iter();
        books
            .map(|entry| {
                (
                    Arc::clone(entry.key()),
                    entry.value().with(now, |book| book.limits(now.steady)),
                )
            })
            .collect()
    }

    /// Every domain with what happened in it and its open sessions, for the metrics.
    pub fn totals(&self, now: Now) -> Vec<(Arc<str>, Counts, u64)> {
        let of_book = |book: &mut LeaseBook| {
            let (_, sessions, _) = book.sizes();
            (book.totals().clone(), sessions as u64)
        };
        let books = self.books.iter();
        books
            .map(|entry| {
                let (counts, sessions) = entry.value().with(now, of_book);
                (Arc::clone(entry.key()), counts, sessions)
            })
            .collect()
    }

    fn all(&self) -> Vec<Arc<Book>> {
        self.books
            .iter()
            .map(|entry| Arc::clone(entry.value()))
            .collect()
    }
}

/// A lease that no book here keeps: of another life of the server, or made up.
struct OtherBoot(bool);

impl Book {
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
        charges.stacking = Stacking::Independent;
        charges
            .list
            .iter_mut()
            .for_each(|charge| charge.refund = true);
        self.counters.decide(&charges, now.wall);
    }

    /// Opens a session, or takes over the one of this token if it is still there.
    pub fn open_session(
        self: &Arc<Self>,
        token: Option<u128>,
        grace: Span,
        clock: &Clock,
    ) -> (Opened, SessionGuard, mpsc::Receiver<Revoked>) {
        let now = clock.now();
        let (sender, receiver) = mpsc::channel(REVOCATIONS);
        let mut inner = self.inner.lock();
        let resumed = token.and_then(|token| inner.book.resume_session(token, now.steady));
        let opened = match resumed {
            Some(opened) => opened,
            None => inner.book.open_session(grace, now.steady),
        };
        let stream = opened.stream;
        inner.sessions.insert(stream.session, sender);
        drop(inner);
        let book = Arc::clone(self);
        let guard = SessionGuard {
            book,
            clock: clock.clone(),
            stream,
            said_goodbye: false,
        };
        (opened, guard, receiver)
    }

    /// Reads or changes the book; whoever is concerned is told before the lock is let go.
    pub fn with<T>(&self, now: Now, act: impl FnOnce(&mut LeaseBook) -> T) -> T {
        let mut inner = self.inner.lock();
        let result = act(&mut inner.book);
        self.turn(&mut inner, now);
        self.tell(&mut inner, now);
        result
    }

    fn next_due(&self) -> Option<Timestamp> {
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

/// Rate units of requests that wait, taken when the permits are there.
struct WaitingRates<'a> {
    counters: &'a MemoryStore,
    waiting: &'a mut HashMap<Ticket, Waiting>,
    now: Now,
}

impl Rates for WaitingRates<'_> {
    fn take(&mut self, ticket: Ticket) -> Option<RateShort> {
        let Waiting { rates, taken, .. } = self.waiting.get_mut(&ticket)?;
        *taken = self.counters.decide(&charges(rates), self.now.wall);
        rate_short(rates, taken)
    }
}

/// What rate units ask of the counters.
pub fn charges(rates: &[RateUnits]) -> Charges<'_> {
    let mut charges = Charges {
        stacking: Stacking::AllOrNothing,
        patience: Some(Span::ZERO),
        ..Charges::default()
    };
    for (descriptor, units) in rates.iter().enumerate() {
        charges.list.push(Charge {
            key: units.key,
            limit: &units.limit,
            cost: units.cost,
            refund: false,
            role: units.role,
            shadow: units.shadow,
            descriptor,
        });
    }
    charges
}

/// The refusing rate limit that takes longest to pass; none when they let the request through.
pub fn rate_short(rates: &[RateUnits], outcomes: &Outcomes) -> Option<RateShort> {
    if !charges(rates).are_refused(outcomes) {
        return None;
    }
    let refusing = rates
        .iter()
        .zip(outcomes)
        .filter(|(units, outcome)| !outcome.allowed && !units.shadow);
    let shorts = refusing.map(|(units, outcome)| RateShort {
        retry_after: match outcome.retry {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        },
        shared: units.shared,
    });
    // None is never, and never is longest.
    shorts.max_by_key(|short| short.retry_after.unwrap_or(Span::MAX))
}

impl Pending {
    /// The answer, when it is there. Also `None` when the server stops meanwhile.
    pub async fn answer(mut self: Box<Self>) -> Option<Box<Answer>> {
        let answer = (&mut self.receiver).await.ok();
        self.answered = true;
        answer
    }

    /// The rate units that are decided together with the permits.
    pub fn rates(&self) -> &[RateUnits] {
        &self.rates
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let now = self.clock.now();
        let waited = {
            let mut inner = self.book.inner.lock();
            inner.waiting.remove(&self.ticket);
            inner.book.leave(self.ticket, now.steady)
        };
        if waited {
            return;
        }
        if let Ok(answer) = self.receiver.try_recv() {
            self.book.undo(&answer, &self.rates, Undo::Left, now);
        }
    }
}

impl SessionGuard {
    /// The session, for requests on this stream.
    pub fn id(&self) -> SessionId {
        self.stream.session
    }

    /// Live leases of the session.
    pub fn leases(&self) -> usize {
        let now = self.clock.now();
        self.book.with(now, |book| book.leases_of(self.id()))
    }

    /// Releases all leases of the session at once.
    pub fn goodbye(mut self) {
        self.said_goodbye = true;
        let now = self.clock.now();
        self.book.inner.lock().sessions.remove(&self.stream.session);
        self.book
            .with(now, |book| book.close_session(self.stream, now.steady));
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        if self.said_goodbye {
            return;
        }
        let now = self.clock.now();
        self.book
            .with(now, |book| book.lose_session(self.stream, now.steady));
        // A grace may have begun.
        self.book.due.notify_one();
    }
}
