//! Leases on concurrency limits: the set of permits that are out, and nothing derived that could
//! drift from it.
//!
//! A [`LeaseBook`] keeps the leases of one domain. It is a state machine: one thread at a time, no
//! clock, no lock, no I/O. Whoever owns it calls, under its lock and with one reading of the steady
//! clock,
//!
//! 1. [`LeaseBook::turn`]: ends what is due, serves who waits;
//! 2. [`LeaseBook::check`]: decides without taking anything;
//! 3. [`LeaseBook::commit`], or [`LeaseBook::refuse`] when an item or a rate limit of the same
//!    request is short;
//! 4. [`LeaseBook::take_events`]: what is to be told to others.
//!
//! [`LeaseBook::acquire`] is 1 to 3 for requests without rate limits. After a release,
//! [`LeaseBook::turn`] again hands the permits on.
//!
//! # Invariants
//!
//! * Permits in flight of a key are the sum over its live leases. A lease lives in
//!   [granted, expiry), to the nanosecond, however late anybody looks.
//! * A grant takes all its permits or none; a refusal takes nothing.
//! * Nothing that a caller sends makes it grow beyond [`Bounds`].

mod acquire;
mod answer;
mod ask;
mod bounds;
mod counter;
mod counts;
mod end;
mod event;
mod fairness;
mod gone;
mod grant;
mod keys;
mod limits;
mod order;
mod queue;
mod recall;
mod record;
mod refuse;
mod release;
mod restart;
mod revoke;
mod serve;
mod session;
mod short;
mod timed;
mod view;
mod wait;
mod weigh;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use rand::{SeedableRng, rngs::StdRng};

use crate::{
    algorithm::concurrency::weight::Costs,
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
};

pub use self::{
    acquire::{Checked, Plan},
    ask::{
        Answer, Ask, AskError, Item, ItemState, MAX_ITEMS, MAX_PERMITS, MAX_REQUEST_ID, Naming,
        RateShort, Reply, Ticket,
    },
    bounds::Bounds,
    counts::{Counts, Tally, Times},
    event::Event,
    record::HolderCount,
    release::Release,
    restart::{Saved, SavedItem, SavedLease},
    revoke::{Revoked, RevokedBy, Undo},
    serve::Rates,
    session::{MAX_GRACE, Opened, SessionId, Stream},
    view::{KeyView, LeaseView, LimitView},
};
use self::{
    counter::Counter,
    end::Ending,
    gone::Peers,
    order::Booking,
    record::{Records, RequestKey},
    restart::Earlier,
    session::Sessions,
    timed::TimedMap,
    wait::Waiters,
};
pub(in crate::store) use self::{order::Order, queue::Rank};

/// How long an ended lease is remembered.
pub const REMEMBER_ENDED: Span = Span::from_secs(60);
/// How long after its slot a refused request is known when it returns.
const REMEMBER_SLOT: Span = Span::from_secs(10);

/// Who a book is, for the ids of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The life of the server; another number at each start.
    pub boot: u32,
    /// The book within the server.
    pub book: u16,
}

/// The leases of one domain.
#[derive(Debug)]
pub struct LeaseBook {
    identity: Identity,
    bounds: Bounds,
    /// Secrets of lease ids, session tokens, jitter.
    random: StdRng,
    /// The latest time that was seen; it never steps back.
    now: Timestamp,
    /// Leases of an earlier life may still be out.
    earlier: Option<Earlier>,
    draining: bool,
    /// Number of the latest grant.
    sequence: u64,
    /// Fences are above this.
    fence: u64,
    counters: HashMap<CounterKey, Counter>,
    /// All keys, for the sweep.
    ring: VecDeque<CounterKey>,
    records: Records,
    sessions: Sessions,
    peers: Peers,
    waiters: Waiters,
    early: TimedMap<(CounterKey, CounterKey), ()>,
    refused: TimedMap<(CounterKey, CounterKey), ()>,
    bookings: TimedMap<RequestKey, Booking>,
    limits: Vec<(Arc<str>, Counts)>,
    /// What the keys of a limit cost, by the index of its statistics.
    costs: HashMap<usize, Costs>,
    totals: Counts,
    /// Keys whose waiters may be served.
    ready: Vec<CounterKey>,
    events: Vec<Event>,
}

impl LeaseBook {
    /// An empty book. `seed` must be unpredictable: lease ids are secrets.
    pub fn new(identity: Identity, bounds: Bounds, seed: [u8; 32], now: Timestamp) -> Self {
        Self {
            identity,
            bounds,
            random: StdRng::from_seed(seed),
            now,
            earlier: None,
            draining: false,
            sequence: 0,
            fence: 0,
            counters: HashMap::new(),
            ring: VecDeque::new(),
            records: Records::default(),
            sessions: Sessions::default(),
            peers: Peers::default(),
            waiters: Waiters::default(),
            early: TimedMap::new(bounds.marks),
            refused: TimedMap::new(bounds.marks),
            bookings: TimedMap::new(bounds.bookings),
            limits: Vec::new(),
            costs: HashMap::new(),
            totals: Counts::default(),
            ready: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Who it is.
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Grants nothing more from now on (or again) to those who could ask another server. Renewals
    /// and releases go on; so do requests whose leases the caller names, or nobody does: a proxy
    /// does not choose whom it asks, and to refuse its requests would turn users away while the
    /// load balancers have yet to notice that this server stops.
    pub const fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// When [`LeaseBook::turn`] has to be called next, at the latest, for the sake of those who
    /// wait and of sessions that are lost. Leases alone need no call.
    pub fn next_due(&self) -> Option<Timestamp> {
        let session = self.sessions.next_end().map(|(ends, _)| ends);
        let wait = self.waiters.next_timeout();
        let lease = self.records.next_expiry().map(|(expires, _)| expires);
        let cut = self.peers.next_due().map(|(due, _)| due);
        let wanted = |due: Option<Timestamp>| wait.and(due);
        let dues = [session, wait, wanted(lease), wanted(cut)];
        dues.into_iter().flatten().min()
    }
}
