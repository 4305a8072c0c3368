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
mod counter;
mod counts;
mod fairness;
mod gone;
mod grant;
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
    algorithm::concurrency::{law::Change, weight::Costs},
    model::{
        key::CounterKey,
        lease::{EndedBy, LeaseId, Outcome},
        time::{Span, Timestamp},
    },
    rules::concurrency::{ConcurrencyRule, Marks, RefundOn},
};

pub use self::{
    acquire::{Checked, Plan},
    ask::{
        Answer, Ask, AskError, Item, ItemState, MAX_ITEMS, MAX_PERMITS, MAX_REQUEST_ID, Naming,
        RateShort, Reply, Ticket,
    },
    counts::{Counts, Tally, Times},
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
    gone::Peers,
    order::Booking,
    record::{Lease, Records, RequestKey},
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
/// A key that nobody asked for this long is forgotten, estimates and all.
const REMEMBER_KEY: Span = Span::from_secs(600);

/// Keys that are looked at for an idle one, when there is no room for a new key.
const KEYS_TRIED: usize = 64;

/// Who a book is, for the ids of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The life of the server; another number at each start.
    pub boot: u32,
    /// The book within the server.
    pub book: u16,
}

/// What bounds the memory of a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Live leases. Default a million.
    pub leases: usize,
    /// Keys. Default 100 000.
    pub keys: usize,
    /// Live leases of one holder. Default 100 000.
    pub leases_per_holder: u64,
    /// Live leases of one session. Default 10 000.
    pub leases_per_session: usize,
    /// Requests that wait. Default 100 000.
    pub waiters: usize,
    /// Refused requests that have a slot. Default 65 536.
    pub bookings: usize,
    /// Early releases, and refused names, that are remembered. Default 65 536 each.
    pub marks: usize,
    /// Holders whose leaks are counted. Default 10 000.
    pub holders: usize,
    /// Limits whose rule is gone and whose counts are kept. Default 1000.
    pub limits: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            leases: 1_000_000,
            keys: 100_000,
            leases_per_holder: 100_000,
            leases_per_session: 10_000,
            waiters: 100_000,
            bookings: 65_536,
            marks: 65_536,
            holders: 10_000,
            limits: 1_000,
        }
    }
}

/// Something that others want to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request that waited has its answer.
    Settled {
        /// Which.
        ticket: Ticket,
        /// The answer.
        answer: Box<Answer>,
    },
    /// Leases of a session were taken back.
    Revoked {
        /// Whose.
        session: SessionId,
        /// Which, and why.
        revoked: Revoked,
    },
    /// A lease on which rate units hang has ended.
    RatesSettled {
        /// Which.
        lease: LeaseId,
        /// Give them back.
        refund: bool,
    },
    /// An adaptive limit moved.
    LimitChanged {
        /// The limit's rule.
        path: Arc<str>,
        /// The counted instance.
        key: CounterKey,
        /// From where to where, and why.
        change: Change,
    },
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

    /// Takes over other versions of the rules, found by their paths: leases and what is known
    /// about keys stay, whoever fits into a raised limit is served at the next turn. A rule that
    /// is gone keeps its leases until they end.
    pub fn reload(
        &mut self,
        rule_of: impl Fn(&str) -> Option<Arc<ConcurrencyRule>>,
        now: Timestamp,
    ) {
        self.advance(now);
        let keys: Vec<CounterKey> = self.counters.keys().copied().collect();
        for key in keys {
            let path = self
                .counters
                .get(&key)
                .map(|counter| Arc::clone(&counter.rule.path));
            if let Some(rule) = path.and_then(|path| rule_of(&path)) {
                self.set_rule(key, &rule, now);
            }
        }
        self.forget_limits(rule_of);
    }

    /// Takes over another version of the rule of one key.
    pub fn set_rule(&mut self, key: CounterKey, rule: &Arc<ConcurrencyRule>, now: Timestamp) {
        self.advance(now);
        let now = self.now;
        let Some(counter) = self.counters.get_mut(&key) else {
            return;
        };
        counter.touch(now);
        counter.follow(rule, now);
        self.limit_moved(key);
    }

    /// Ends everything that is due, in the order in which it was due.
    fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        loop {
            let lease = self.records.next_expiry().filter(|(at, _)| *at <= self.now);
            let cut = self.peers.next_due().filter(|(at, _)| *at <= self.now);
            if let Some((at, peer)) = cut
                && lease.is_none_or(|(expires, _)| at < expires)
            {
                // Before what ends later: a cut may make it end sooner.
                self.cut_short(peer, at);
                continue;
            }
            let session = self.sessions.next_end().filter(|(at, _)| *at <= self.now);
            match (lease, session) {
                (Some((at, sequence)), session) if session.is_none_or(|(ends, _)| at <= ends) => {
                    self.end(sequence, Ending::By(EndedBy::Expired), at);
                }
                (_, Some((at, session))) => self.end_session(session, EndedBy::SessionLost, at),
                (_, None) => break,
            }
        }
    }

    /// Ends a lease; `at` may lie before now, when it was not noticed in time.
    fn end(&mut self, sequence: u64, ending: Ending, at: Timestamp) -> Option<Lease> {
        let by = ending.by();
        let lease = self
            .records
            .remove(sequence, by == Some(EndedBy::Expired))?;
        for held in &lease.held {
            let Some(counter) = self.counters.get_mut(&held.key) else {
                continue;
            };
            let entry = (lease.expires, sequence);
            counter.give_back(entry, lease.granted, at, lease.tenant, by.is_some());
            if !counter.queue.is_empty() {
                self.ready.push(held.key);
            }
            if let (Some(by), Some((_, counts))) = (by, self.limits.get_mut(counter.stats)) {
                counts.ended(by, self.now.since(at));
            }
        }
        if !lease.refund_on.is_never() {
            self.events.push(Event::RatesSettled {
                lease: lease.id,
                refund: ending.refunds(lease.refund_on),
            });
        }
        if let Some(session) = lease.session {
            self.sessions.remove(session, sequence);
        }
        if let Some(peer) = lease.peer {
            self.peers.remove(peer, sequence);
        }
        match by {
            Some(by) => {
                self.totals.ended(by, self.now.since(at));
                self.remember_ended(&lease, by);
            }
            None => self.records.undo(&lease),
        }
        Some(lease)
    }

    /// The memory of an ended lease counts against its first key, so that it is bounded by what
    /// the limit lets in.
    fn remember_ended(&mut self, lease: &Lease, by: EndedBy) {
        let Some(counter) = lease
            .held
            .first()
            .and_then(|held| self.counters.get_mut(&held.key))
        else {
            self.records.undo(lease);
            return;
        };
        self.records.remember(lease, by, self.now);
        counter.ended.push_back((self.now, lease.id.sequence));
        let most = usize::try_from(counter.limit().saturating_mul(4)).unwrap_or(usize::MAX);
        while let Some((noticed, oldest)) = counter.ended.front().copied() {
            if counter.ended.len() <= most.max(16) && noticed + REMEMBER_ENDED > self.now {
                break;
            }
            counter.ended.pop_front();
            self.records.forget(oldest);
        }
    }

    /// The limit of a key is another one: serve who waits, or take back what is too much.
    fn limit_moved(&mut self, key: CounterKey) {
        let Some(counter) = self.counters.get(&key) else {
            return;
        };
        if !counter.queue.is_empty() {
            self.ready.push(key);
        }
        self.shrink(key);
    }

    /// The counter of a key under the present version of its rule. None when there is no room.
    fn counter(&mut self, key: CounterKey, rule: &Arc<ConcurrencyRule>) -> Option<&mut Counter> {
        if !self.counters.contains_key(&key) {
            if self.counters.len() >= self.bounds.keys {
                self.forget_keys(KEYS_TRIED, Span::ZERO);
            }
            if self.counters.len() >= self.bounds.keys {
                return None;
            }
            let stats = self.stats_of(&rule.path);
            self.ring.push_back(key);
            let counter = Counter::new(Arc::clone(rule), stats, self.now);
            return Some(self.counters.entry(key).or_insert(counter));
        }
        if self
            .counters
            .get(&key)
            .is_some_and(|counter| !Arc::ptr_eq(&counter.rule, rule))
        {
            self.set_rule(key, rule, self.now);
        }
        let now = self.now;
        let counter = self.counters.get_mut(&key)?;
        counter.used = now;
        Some(counter)
    }

    /// How long the marks of a key last; the default for one that nobody asked for.
    fn marks(&self, key: CounterKey) -> Marks {
        let counter = self.counters.get(&key);
        counter.map_or_else(Marks::default, |counter| counter.rule.marks)
    }

    /// Ends what is due and forgets, looking at `steps` keys. Correctness does not need it.
    pub fn sweep(&mut self, steps: usize, now: Timestamp) {
        self.advance(now);
        self.early.purge(self.now);
        self.refused.purge(self.now);
        self.bookings.purge(self.now);
        self.records.shrink_holders(self.bounds.holders);
        self.forget_keys(steps, REMEMBER_KEY);
    }

    /// Looks at `steps` keys: forgets ended leases whose time is over, and keys that are idle.
    fn forget_keys(&mut self, steps: usize, idle: Span) {
        for _ in 0..steps.min(self.ring.len()) {
            let Some(key) = self.ring.pop_front() else {
                return;
            };
            let Some(counter) = self.counters.get_mut(&key) else {
                continue;
            };
            let forgettable = counter.is_idle(self.now) && counter.used + idle <= self.now;
            while let Some((noticed, oldest)) = counter.ended.front().copied() {
                if !forgettable && noticed + REMEMBER_ENDED > self.now {
                    break;
                }
                counter.ended.pop_front();
                self.records.forget(oldest);
            }
            if forgettable {
                if let (Some(cost), Some(costs)) =
                    (counter.cost, self.costs.get_mut(&counter.stats))
                {
                    costs.forget(cost);
                }
                self.counters.remove(&key);
            } else {
                self.ring.push_back(key);
            }
        }
    }
}

/// How a lease comes to its end.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Its holder gave it back and said what became of the work.
    Returned(Outcome),
    /// As told to whoever asks.
    By(EndedBy),
    /// As if it had never been.
    Undone,
}

impl Ending {
    /// As told to whoever asks; none when it had never been.
    const fn by(self) -> Option<EndedBy> {
        match self {
            Self::Returned(_) => Some(EndedBy::Released),
            Self::By(by) => Some(by),
            Self::Undone => None,
        }
    }

    /// Whether rate units are given back. Those of what had never been are given back by whoever
    /// undoes it.
    const fn refunds(self, on: RefundOn) -> bool {
        match self {
            Self::Returned(Outcome::Dropped) => on.dropped,
            Self::By(EndedBy::Expired | EndedBy::SessionLost) => on.expired,
            Self::Returned(_) | Self::By(_) | Self::Undone => false,
        }
    }
}
