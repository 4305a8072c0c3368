//! A lease book under a clock of virtual time.

use std::sync::Arc;

use crate::{
    model::{
        key::CounterKey,
        lease::{LeaseId, Outcome},
        time::{Span, Timestamp},
    },
    rules::concurrency::{ConcurrencyRule, Shedding},
    store::lease::{Answer, Ask, Bounds, Event, Identity, Item, LeaseBook, Release, Reply, Ticket},
};

/// The limit under study, in most scenarios the only one.
pub(super) const KEY: CounterKey = CounterKey::from_bits(0);

/// The book of a scenario.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) book: LeaseBook,
}

/// An answer, or a place in the queue.
#[derive(Debug)]
pub(super) enum Said {
    Yes(LeaseId),
    /// Until when to stay away, if there is a point in coming back.
    No(Option<Span>),
    Wait(Ticket),
}

impl Desk {
    pub(super) fn new(seed: u64) -> Self {
        let mut secret = [0; 32];
        for (place, byte) in secret.iter_mut().zip(seed.to_le_bytes()) {
            *place = byte;
        }
        let identity = Identity { boot: 1, book: 0 };
        let book = LeaseBook::new(identity, Bounds::default(), secret, Timestamp::ZERO);
        Self { book }
    }

    /// One permit of the limit, for nobody in particular.
    pub(super) fn ask_one(&mut self, rule: &Arc<ConcurrencyRule>, now: Timestamp) -> Said {
        self.ask(&Ask::new(&[Item::one(KEY, rule)]), now)
    }

    pub(super) fn ask(&mut self, ask: &Ask<'_>, now: Timestamp) -> Said {
        match self.book.acquire(ask, now) {
            Ok(Reply::Waits(ticket)) => Said::Wait(ticket),
            Ok(Reply::Now(answer)) => said(&answer),
            Err(error) => {
                debug_assert!(false, "a scenario ran into a bound: {error}");
                Said::No(None)
            }
        }
    }

    pub(super) fn release(&mut self, id: LeaseId, now: Timestamp) {
        self.release_as(id, Outcome::Success, now);
    }

    pub(super) fn release_as(&mut self, id: LeaseId, outcome: Outcome, now: Timestamp) {
        let release = Release {
            id,
            holder: None,
            outcome,
            held: None,
            service_time: None,
            actual_permits: None,
        };
        self.book.release(&release, now);
    }

    /// Serves and refuses who waits; the answers.
    pub(super) fn settled(&mut self, now: Timestamp) -> Vec<(Ticket, Said)> {
        self.book.turn(now, &mut ());
        let events = self.book.take_events().into_iter();
        let settled = events.filter_map(|event| match event {
            Event::Settled { ticket, answer } => Some((ticket, said(&answer))),
            _ => None,
        });
        settled.collect()
    }

    pub(super) fn limit(&self, now: Timestamp) -> u64 {
        self.book.peek(KEY, now).map_or(0, |view| view.limit)
    }

    pub(super) fn in_flight(&self, now: Timestamp) -> u64 {
        self.book.peek(KEY, now).map_or(0, |view| view.in_flight)
    }
}

fn said(answer: &Answer) -> Said {
    match answer.leases.first() {
        Some(id) if answer.is_go() => Said::Yes(*id),
        _ => Said::No(answer.retry_after),
    }
}

/// A fixed limit whose mean hold is known from the start, that never sheds, and whose leases last.
pub(super) fn plain(permits: u64, hold: f64) -> ConcurrencyRule {
    let mut rule = ConcurrencyRule::fixed("scenario", permits);
    rule.lease_ttl = Span::from_secs(100_000_000);
    rule.max_lifetime = rule.lease_ttl;
    rule.shedding = Shedding::Thresholds([1.0; 4]);
    rule.estimates.prior_hold = Span::from_secs_f64(hold);
    rule.waiting.max_waiters = u64::MAX;
    rule
}

/// The mean hold is given and not estimated.
pub(super) fn knowing(mut rule: ConcurrencyRule) -> ConcurrencyRule {
    rule.estimates.alpha = 0.0;
    rule.estimates.exposure = false;
    rule
}
