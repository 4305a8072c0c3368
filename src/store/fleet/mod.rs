//! The leases of one domain in a store that all replicas share.
//!
//! A request for permits is one call of the script in `store/redis/lease`, which decides it
//! together with its rate limits ([`acquire`]); so is what ends and prolongs leases ([`by_id`]) and
//! what looks at them ([`look`]). What needs a process of its own is here: requests that wait
//! ([`waiting`]), streams that keep leases alive ([`session`]), what has to be told to the store
//! sooner or later ([`outbox`]), how limits stand for the metrics ([`watch`]), and what is done
//! while it is away ([`stand_in`]).

mod acquire;
mod by_id;
mod look;
mod outbox;
mod request;
mod session;
mod stand_in;
#[cfg(test)]
mod twin;
mod waiting;
mod watch;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

pub use self::request::Request;
use self::{outbox::Outbox, session::Sessions, waiting::Queues, watch::Watch};
use crate::{
    model::time::{Clock, Span},
    store::{
        charges::Outcomes,
        decided::Degraded,
        fallback::SharedStore,
        lease::{Answer, Bounds, Identity, LeaseBook},
        leases::Book,
        redis::RedisStore,
    },
};

/// The boot in the ids of shared leases: of no server's life.
pub const NO_BOOT: u32 = 0;

/// The leases of one domain.
#[derive(Debug)]
pub struct Fleet {
    domain: Arc<str>,
    /// Of the domain, in lease ids.
    number: u16,
    store: Arc<SharedStore>,
    clock: Clock,
    bounds: Bounds,
    draining: AtomicBool,
    queues: Arc<Queues>,
    sessions: Sessions,
    outbox: Outbox,
    watch: Watch,
    /// Grants while the store is away.
    stand_in: Arc<Book>,
    /// Grants of it since it was last empty: 0 when it has no lease that the store does not know.
    strayed: AtomicU64,
    handing_over: AtomicBool,
}

/// The answer to a request for permits.
#[derive(Debug)]
pub struct Taken {
    /// The answer.
    pub answer: Box<Answer>,
    /// How the rate limits of the request stand.
    pub outcomes: Outcomes,
    /// Set when the store did not decide.
    pub degraded: Option<Degraded>,
}

impl Fleet {
    /// The leases of a domain. Rate limits of requests are counted in `counters` while the store is
    /// away.
    pub(in crate::store) fn new(
        domain: &Arc<str>,
        store: &Arc<SharedStore>,
        clock: &Clock,
        bounds: Bounds,
        stand_in: impl FnOnce(LeaseBook) -> Arc<Book>,
    ) -> Self {
        let number = store.redis().number_of(domain);
        let identity = Identity {
            boot: NO_BOOT,
            book: number,
        };
        let book = LeaseBook::new(identity, bounds, rand::random(), clock.now().steady);
        Self {
            domain: Arc::clone(domain),
            number,
            store: Arc::clone(store),
            clock: clock.clone(),
            bounds,
            draining: AtomicBool::new(false),
            queues: Arc::default(),
            sessions: Sessions::default(),
            outbox: Outbox::default(),
            watch: Watch::default(),
            stand_in: stand_in(book),
            strayed: AtomicU64::new(0),
            handing_over: AtomicBool::new(false),
        }
    }

    /// Whose leases they are.
    pub(in crate::store) const fn domain(&self) -> &Arc<str> {
        &self.domain
    }

    /// The number of the domain in lease ids; domains may share one.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The leases that this process granted while the store was away, and has not handed over.
    pub(in crate::store) fn stand_in(&self) -> &Arc<Book> {
        &self.stand_in
    }

    /// Grants nothing more from now on; releases and renewals go on.
    pub(in crate::store) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// How long a lease of a session lives without being renewed.
    fn session_life(&self) -> Span {
        self.redis().session_life()
    }

    fn redis(&self) -> &RedisStore {
        self.store.redis()
    }
}
