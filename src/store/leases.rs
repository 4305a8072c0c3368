//! The lease books of this process, one per domain, and who waits for their answers.
//!
//! Lock order: a book first, then shards of counters in ascending order. A request with permits
//! and rate units is decided while both are held, so that it takes all or nothing. Nothing is
//! awaited under a lock: whoever waits for a permit waits for a message.

mod follow;

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

use self::follow::Earlier;
use crate::{
    algorithm::Retry,
    model::{
        key::CounterKey,
        lease::{Decision, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Clock, Now, Span, Timestamp},
    },
    rules::{Rules, Stacking, concurrency::ConcurrencyRule, limit::Limit},
    store::{
        Charge, Charges, Outcomes, Role, Store,
        connections::Connections,
        fallback::SharedStore,
        fleet::{Fleet, NO_BOOT},
        lease::{
            Answer, Ask, AskError, Bounds, Checked, Counts, Event, Identity, LeaseBook, LimitView,
            Opened, RateShort, Rates, Release, Reply, Revoked, SessionId, Stream, Ticket, Undo,
        },
        memory::MemoryStore,
        redis::{StoreError, not_shared},
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
    books: Arc<Books>,
    by_number: DashMap<u16, Arc<Book>>,
    next: AtomicU16,
    boot: u32,
    bounds: Bounds,
    /// Leases from before end by their TTLs from here on, where they are not known.
    started: Timestamp,
    earlier: Earlier,
    connections: Arc<Connections>,
    /// By when holders have to have moved, once the server stops.
    stopping: watch::Sender<Option<Timestamp>>,
    shared: Option<Arc<SharedStore>>,
    clock: Clock,
    /// Domains whose leases are in the shared store.
    fleets: DashMap<Arc<str>, Arc<Fleet>>,
    /// By number, those of earlier rules too: their leases can still be released.
    fleets_by_number: DashMap<u16, Vec<Arc<Fleet>>>,
}

/// Where the leases of a domain are.
#[derive(Clone, Debug)]
pub enum Keeper {
    /// In this process.
    Book(Arc<Book>),
    /// In a store that all replicas share.
    Fleet(Arc<Fleet>),
}

/// The books, by domain.
#[derive(Debug, Default)]
pub(super) struct Books {
    by_domain: DashMap<Arc<str>, Arc<Book>>,
    /// Something is due earlier than before.
    due: Arc<Notify>,
}

impl Books {
    fn all(&self) -> Vec<Arc<Book>> {
        let books = self.by_domain.iter();
        books.map(|entry| Arc::clone(entry.value())).collect()
    }

    /// Does something with every book.
    pub(super) fn each(&self, mut act: impl FnMut(&Book)) {
        for book in self.all() {
            act(&book);
        }
    }

    /// [`Leases::drive`] has to look again when something is due.
    pub(super) fn something_is_due(&self) {
        self.due.notify_one();
    }
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
    keeper: Keeper,
    clock: Clock,
    stream: Stream,
    said_goodbye: bool,
}

impl Leases {
    /// No leases yet. Rate units of requests for permits are counted in `store`. Limits whose rule
    /// says so grant nothing new for a while from now on, see
    /// [`crate::rules::concurrency::OnRestart`].
    pub fn new(store: &Store, bounds: Bounds, clock: Clock) -> Self {
        let books = Arc::<Books>::default();
        Self {
            connections: Arc::new(Connections::new(Arc::clone(&books))),
            counters: Arc::clone(store.memory()),
            shared: store.shared().cloned(),
            started: clock.now().steady,
            clock,
            fleets: DashMap::new(),
            fleets_by_number: DashMap::new(),
            books,
            by_number: DashMap::new(),
            next: AtomicU16::new(0),
            boot: rand::random::<u32>().max(NO_BOOT + 1),
            bounds,
            earlier: Earlier::default(),
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
        if let Some(book) = self.books.by_domain.get(domain) {
            return Ok(Arc::clone(&book));
        }
        let book = self
            .books
            .by_domain
            .entry(Arc::clone(domain))
            .or_try_insert_with(|| {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                if number == MOST_BOOKS {
                    return Err(AskError::BookFull);
                }
                let mut book = LeaseBook::new(
                    self.identity(number),
                    self.bounds,
                    rand::random(),
                    now.steady,
                );
                self.begin(&mut book);
                let book = self.book(book);
                self.by_number.insert(number, Arc::clone(&book));
                Ok(book)
            })?;
        Ok(Arc::clone(&book))
    }

    /// Tells a new book what was before it.
    fn begin(&self, book: &mut LeaseBook) {
        book.set_draining(self.stopping.borrow().is_some());
        self.earlier.precede(book, self.started);
    }

    fn identity(&self, book: u16) -> Identity {
        Identity {
            boot: self.boot,
            book,
        }
    }

    fn book(&self, book: LeaseBook) -> Arc<Book> {
        Arc::new(Book {
            counters: Arc::clone(&self.counters),
            due: Arc::clone(&self.books.due),
            inner: Mutex::new(Inner {
                book,
                waiting: HashMap::new(),
                hanging: HashMap::new(),
                sessions: HashMap::new(),
            }),
        })
    }

    /// Where the leases of a domain are that the rules know.
    ///
    /// # Errors
    /// As [`Leases::of_domain`].
    pub fn keeper(&self, domain: &Arc<str>, now: Now) -> Result<Keeper, AskError> {
        match self.fleets.get(domain) {
            Some(fleet) => Ok(Keeper::Fleet(Arc::clone(&fleet))),
            None => self.of_domain(domain, now).map(Keeper::Book),
        }
    }

    /// Opens a session, or takes over the one of this token if it is still there.
    ///
    /// # Errors
    /// As [`Leases::of_domain`].
    pub fn open_session(
        &self,
        domain: &Arc<str>,
        token: Option<u128>,
        grace: Span,
        now: Now,
    ) -> Result<(Opened, SessionGuard, mpsc::Receiver<Revoked>), AskError> {
        let keeper = self.keeper(domain, now)?;
        let (sender, receiver) = mpsc::channel(REVOCATIONS);
        let opened = match &keeper {
            Keeper::Book(book) => book.open_session(token, grace, sender, now),
            Keeper::Fleet(fleet) => fleet.open_session(token, grace, sender),
        };
        let guard = SessionGuard {
            keeper,
            clock: self.clock.clone(),
            stream: opened.stream,
            said_goodbye: false,
        };
        Ok((opened, guard, receiver))
    }

    /// Ends leases, whichever domains they are of.
    ///
    /// # Errors
    /// The shared store is away: its leases end as soon as it is back.
    pub async fn release(
        &self,
        releases: &[Release<'_>],
        now: Now,
    ) -> Result<Vec<ReleaseStatus>, StoreError> {
        let mut statuses = vec![ReleaseStatus::Unknown; releases.len()];
        let mut away: HashMap<u16, Vec<usize>> = HashMap::new();
        for (place, release) in releases.iter().enumerate() {
            statuses[place] = match self.of_lease(&release.id) {
                Ok(book) => book.release(release, now),
                Err(Elsewhere::Fleet) => {
                    away.entry(release.id.book).or_default().push(place);
                    continue;
                }
                Err(Elsewhere::OtherBoot) => ReleaseStatus::OtherBoot,
                Err(Elsewhere::Unknown) => ReleaseStatus::Unknown,
            };
        }
        for (number, mut places) in away {
            for fleet in self.fleets_of(number) {
                let some: Vec<Release<'_>> = places.iter().map(|place| releases[*place]).collect();
                let told = fleet.release(&some, now).await?;
                for (place, status) in places.iter().zip(told) {
                    statuses[*place] = status;
                }
                // Another domain of this number may know the rest.
                places.retain(|place| statuses[*place] == ReleaseStatus::Unknown);
                if places.is_empty() {
                    break;
                }
            }
        }
        Ok(statuses)
    }

    /// Prolongs leases, whichever domains they are of: id, holder and TTL of each.
    ///
    /// # Errors
    /// The shared store is away.
    pub async fn renew(
        &self,
        renewed: &[(LeaseId, Option<&str>, Option<Span>)],
        now: Now,
    ) -> Result<Vec<RenewStatus>, StoreError> {
        let mut statuses = vec![RenewStatus::Unknown; renewed.len()];
        let mut away: HashMap<u16, Vec<usize>> = HashMap::new();
        for (place, (id, holder, ttl)) in renewed.iter().enumerate() {
            statuses[place] = match self.of_lease(id) {
                Ok(book) => book.renew(id, *holder, *ttl, now),
                Err(Elsewhere::Fleet) => {
                    away.entry(id.book).or_default().push(place);
                    continue;
                }
                Err(Elsewhere::OtherBoot) => RenewStatus::OtherBoot,
                Err(Elsewhere::Unknown) => RenewStatus::Unknown,
            };
        }
        for (number, mut places) in away {
            for fleet in self.fleets_of(number) {
                let some: Vec<_> = places.iter().map(|place| renewed[*place]).collect();
                let told = fleet.renew(&some, now).await?;
                for (place, status) in places.iter().zip(told) {
                    statuses[*place] = status;
                }
                places.retain(|place| statuses[*place] == RenewStatus::Unknown);
                if places.is_empty() {
                    break;
                }
            }
        }
        Ok(statuses)
    }

    /// Domains of this number.
    fn fleets_of(&self, number: u16) -> Vec<Arc<Fleet>> {
        let fleets = self.fleets_by_number.get(&number);
        fleets.map(|fleets| fleets.clone()).unwrap_or_default()
    }

    fn of_lease(&self, id: &LeaseId) -> Result<Arc<Book>, Elsewhere> {
        if self.shared.is_some() && id.boot == NO_BOOT {
            return Err(Elsewhere::Fleet);
        }
        let is_other = id.boot != self.boot;
        if is_other && !self.earlier.is_there() {
            return Err(Elsewhere::OtherBoot);
        }
        let elsewhere = if is_other {
            Elsewhere::OtherBoot
        } else {
            Elsewhere::Unknown
        };
        // A book that follows one of another boot has kept its number.
        self.by_number
            .get(&id.book)
            .map(|book| Arc::clone(&book))
            .ok_or(elsewhere)
    }

    /// Decides which domains have their leases in the shared store: those whose limits can all be
    /// counted there, because what is asked for together is decided together.
    fn share(&self, rules: &Rules) {
        let Some(shared) = &self.shared else {
            return;
        };
        for domain in rules.domains() {
            let limits = domain.rules_in_flight();
            let against = limits
                .iter()
                .find_map(|rule| Some((rule, not_shared(rule)?)));
            if let Some((rule, why)) = against {
                self.fleets.remove(&domain.name);
                let at = &rule.source;
                tracing::warn!(
                    domain = &*domain.name,
                    rule = &*rule.path,
                    at = format_args!("{}:{}:{}", at.file, at.line, at.column),
                    "work in flight of this domain is counted by each replica on its own, not over \
                     the fleet: {why}"
                );
            } else if !limits.is_empty() && !self.fleets.contains_key(&domain.name) {
                let fleet = Fleet::new(&domain.name, shared, &self.clock, self.bounds, |book| {
                    self.book(book)
                });
                let fleet = Arc::new(fleet);
                if self.stopping.borrow().is_some() {
                    fleet.drain();
                }
                let mut known = self.fleets_by_number.entry(fleet.number()).or_default();
                known.push(Arc::clone(&fleet));
                self.fleets.insert(Arc::clone(&domain.name), fleet);
            }
        }
    }

    /// Takes over other versions of the rules: leases stay, raised limits serve who waits.
    pub fn reload(&self, rules: &Rules, now: Now) {
        self.share(rules);
        let mut by_path = HashMap::new();
        for rule in rules.rules() {
            if let Some(concurrency) = &rule.concurrency {
                by_path.insert(Arc::clone(&concurrency.path), Arc::clone(concurrency));
            }
        }
        let wanted = |rule: &Arc<ConcurrencyRule>| rule.gone.after.is_some();
        self.connections.set_wanted(by_path.values().any(wanted));
        self.reopen(|path| by_path.get(path).map(Arc::clone), now);
        // Stand-ins take their part of a limit with each request.
        for book in &self.books.by_domain {
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
        for fleet in &self.fleets {
            fleet.drain();
        }
    }

    /// Who is connected.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
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
            let notified = self.books.due.notified();
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
        let books = self.books.by_domain.iter();
        books
            .map(|entry| {
                (
                    Arc::clone(entry.key()),
                    entry.value().with(now, |book| book.limits(now.steady)),
                )
            })
            .collect()
    }

    /// Every limit in the shared store that this process asked for lately, over all replicas, as it
    /// stood when [`Leases::watch`] looked last.
    pub fn shared_limits(&self) -> Vec<(Arc<str>, Vec<LimitView>)> {
        let fleets = self.fleets.iter();
        fleets
            .map(|entry| (Arc::clone(entry.key()), entry.value().limits()))
            .collect()
    }

    /// Looks at those every so often, for ever.
    pub async fn watch(&self, every: Span) {
        loop {
            sleep(every.into()).await;
            let fleets: Vec<Arc<Fleet>> = self
                .fleets
                .iter()
                .map(|entry| Arc::clone(entry.value()))
                .collect();
            for fleet in fleets {
                fleet.look_again().await;
            }
        }
    }

    /// Every domain with what happened in it and its open sessions, for the metrics.
    pub fn totals(&self, now: Now) -> Vec<(Arc<str>, Counts, u64)> {
        let of_book = |book: &mut LeaseBook| {
            let (_, sessions, _) = book.sizes();
            (book.totals().clone(), sessions as u64)
        };
        let books = self.books.by_domain.iter();
        books
            .map(|entry| {
                let (counts, sessions) = entry.value().with(now, of_book);
                (Arc::clone(entry.key()), counts, sessions)
            })
            .collect()
    }

    fn all(&self) -> Vec<Arc<Book>> {
        let fleets = self.fleets_by_number.iter();
        let stand_ins = fleets.flat_map(|entry| {
            let books = entry
                .value()
                .iter()
                .map(|fleet| Arc::clone(fleet.stand_in()));
            books.collect::<Vec<_>>()
        });
        self.books.all().into_iter().chain(stand_ins).collect()
    }
}

/// A lease that no book here keeps.
enum Elsewhere {
    /// The shared store may.
    Fleet,
    /// Of another life of the server.
    OtherBoot,
    /// Made up.
    Unknown,
}

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

    fn open_session(
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
        match &self.keeper {
            Keeper::Book(book) => {
                let now = self.clock.now();
                book.with(now, |book| book.leases_of(self.stream.session))
            }
            Keeper::Fleet(fleet) => fleet.leases_of(self.stream.session),
        }
    }

    /// Releases all leases of the session at once.
    pub fn goodbye(mut self) {
        self.said_goodbye = true;
        match &self.keeper {
            Keeper::Book(book) => {
                let now = self.clock.now();
                book.inner.lock().sessions.remove(&self.stream.session);
                book.with(now, |book| book.close_session(self.stream, now.steady));
            }
            Keeper::Fleet(fleet) => fleet.close_session(self.stream),
        }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        if self.said_goodbye {
            return;
        }
        match &self.keeper {
            Keeper::Book(book) => {
                let now = self.clock.now();
                book.with(now, |book| book.lose_session(self.stream, now.steady));
                // A grace may have begun.
                book.due.notify_one();
            }
            Keeper::Fleet(fleet) => fleet.lose_session(self.stream),
        }
    }
}
