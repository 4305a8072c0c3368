//! The lease book, driven by hand.

mod desk;
mod envoy;
mod golden;
mod gone;
mod knobs;
mod limits;
mod random;
mod refunds;
mod semantics;
mod sessions;
mod threads;
mod trace;
mod waiting;
mod weights;
mod words;

use std::sync::Arc;

use porteiro::{
    model::{
        key::CounterKey,
        lease::{Holder, LeaseId, Outcome, ReleaseStatus},
        time::{Span, Timestamp},
    },
    rules::concurrency::ConcurrencyRule,
    store::lease::{Answer, Ask, Bounds, Event, Identity, Item, LeaseBook, Release, Reply, Ticket},
};

/// A book and the hand on its clock.
pub(crate) struct Bench {
    pub(crate) book: LeaseBook,
    pub(crate) now: Timestamp,
}

/// The key that most tests use.
pub(crate) const KEY: CounterKey = CounterKey::from_bits(1);

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Bounds::default())
    }

    pub(crate) fn with(bounds: Bounds) -> Self {
        let now = Timestamp::from_secs(1_000);
        let identity = Identity { boot: 1, book: 0 };
        let book = LeaseBook::new(identity, bounds, [7; 32], now);
        Self { book, now }
    }

    /// Moves the clock; what is due happens, and is told.
    pub(crate) fn pass(&mut self, millis: u64) -> Vec<Event> {
        self.now = self.now + Span::from_millis(millis);
        self.turn()
    }

    /// Ends, serves and refuses what is due.
    pub(crate) fn turn(&mut self) -> Vec<Event> {
        self.book.turn(self.now, &mut ());
        self.book.take_events()
    }

    /// Answers to calls that waited.
    pub(crate) fn settled(&mut self) -> Vec<(Ticket, Answer)> {
        self.turn().into_iter().filter_map(settled).collect()
    }

    pub(crate) fn reply(&mut self, ask: &Ask<'_>) -> Reply {
        self.book.acquire(ask, self.now).unwrap()
    }

    /// An answer at once.
    pub(crate) fn ask(&mut self, ask: &Ask<'_>) -> Answer {
        match self.reply(ask) {
            Reply::Now(answer) => *answer,
            Reply::Waits(ticket) => panic!("waits with {ticket:?}"),
        }
    }

    /// A place in the queue.
    pub(crate) fn wait(&mut self, ask: &Ask<'_>) -> Ticket {
        match self.reply(ask) {
            Reply::Now(answer) => panic!("answered with {answer:?}"),
            Reply::Waits(ticket) => ticket,
        }
    }

    /// One permit of [`KEY`], granted.
    pub(crate) fn take(&mut self, rule: &Arc<ConcurrencyRule>) -> LeaseId {
        let answer = self.ask(&Ask::new(&[Item::one(KEY, rule)]));
        assert!(answer.is_go(), "{answer:?}");
        answer.leases[0]
    }

    pub(crate) fn release(&mut self, id: LeaseId) -> ReleaseStatus {
        let release = Release {
            id,
            holder: None,
            outcome: Outcome::Success,
            held: None,
            service_time: None,
            actual_permits: None,
        };
        self.book.release(&release, self.now)
    }

    pub(crate) fn in_flight(&self, key: CounterKey) -> u64 {
        self.book
            .peek(key, self.now)
            .map_or(0, |view| view.in_flight)
    }

    /// Fails when the books of Little's law do not balance.
    pub(crate) fn audit(&mut self) {
        for limit in self.book.limits(self.now) {
            assert!(limit.conservation_error == 0.0, "{limit:?}");
        }
    }
}

pub(crate) fn settled(event: Event) -> Option<(Ticket, Answer)> {
    match event {
        Event::Settled { ticket, answer } => Some((ticket, *answer)),
        _ => None,
    }
}

pub(crate) fn holder(id: &str) -> Holder {
    Holder {
        id: id.into(),
        instance: "".into(),
    }
}

/// A limit as users write it, but without the jitter of hints.
pub(crate) fn limit(permits: u64) -> Arc<ConcurrencyRule> {
    rule(permits, |_| {})
}

/// The same with something else.
pub(crate) fn rule(
    permits: u64,
    change: impl FnOnce(&mut ConcurrencyRule),
) -> Arc<ConcurrencyRule> {
    let mut rule = ConcurrencyRule::fixed("work", permits);
    rule.hints.jitter = 0.0;
    change(&mut rule);
    Arc::new(rule)
}

pub(crate) const fn millis(millis: u64) -> Span {
    Span::from_millis(millis)
}
