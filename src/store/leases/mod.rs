//! The lease books of this process, one per domain, and who waits for their answers.
//!
//! Lock order: a book first, then shards of counters in ascending order. A request with permits
//! and rate units is decided while both are held, so that it takes all or nothing. Nothing is
//! awaited under a lock: whoever waits for a permit waits for a message.
//!
//! [`Leases`] knows all books, and the domains whose leases are in a shared store. A request for
//! permits goes to the [`Book`] of its domain, with its [`RateUnits`]; it may get a place in the
//! queue, a [`Pending`]. Releases and renewals find their book by the id of the lease (`by_id`),
//! sessions hang on a [`SessionGuard`] each. Without being asked, `due` ends what is due; `rules`
//! takes over new rules, `follow` what an earlier life of the server left; `gauges` tells the metrics.

mod book;
pub(super) mod books;
mod by_id;
mod departed;
mod due;
mod follow;
mod gauges;
mod pending;
mod rates;
mod rules;
mod session;

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering},
};

use dashmap::DashMap;
use tokio::sync::watch;

pub use self::{
    book::{Acquired, Book},
    pending::Pending,
    rates::{RateUnits, charges, rate_short},
    session::SessionGuard,
};
use self::{books::Books, departed::Departed, follow::Earlier};
use crate::{
    model::time::{Clock, Now, Timestamp},
    store::{
        Store,
        connections::Connections,
        fallback::SharedStore,
        fleet::{Fleet, NO_BOOT},
        lease::{AskError, Bounds, Identity, LeaseBook},
        memory::MemoryStore,
    },
};

/// All books.
#[derive(Debug)]
pub struct Leases {
    counters: Arc<MemoryStore>,
    books: Arc<Books>,
    by_number: DashMap<u16, Arc<Book>>,
    /// Where the search for the number of a new book begins.
    next: AtomicU16,
    departed: Departed,
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
            departed: Departed::default(),
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
                let number = self.free_number().ok_or(AskError::BookFull)?;
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

    /// A number that no book has: of 65,536, with a book for each domain that has leases. One that
    /// a dropped book had may come again, and leases of that one are unknown to the new one: what
    /// tells leases apart is secret.
    fn free_number(&self) -> Option<u16> {
        (0..=u16::MAX)
            .map(|_| self.next.fetch_add(1, Ordering::Relaxed))
            .find(|number| !self.by_number.contains_key(number))
    }

    /// Tells a new book what was before it.
    fn begin(&self, book: &mut LeaseBook) {
        book.set_draining(self.stopping.borrow().is_some());
        self.earlier.precede(book, self.started);
        self.departed.precede(book);
    }

    fn identity(&self, book: u16) -> Identity {
        Identity {
            boot: self.boot,
            book,
        }
    }

    fn book(&self, book: LeaseBook) -> Arc<Book> {
        Arc::new(Book::new(book, &self.counters, &self.books.due))
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
