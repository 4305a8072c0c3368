//! All requests of a book that wait, whatever key they are parked at.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use crate::{
    model::{key::CounterKey, time::Timestamp},
    store::lease::{ask::Ticket, order::Order, queue::Place},
};

/// A waiting request. It is parked in the queue of one key that is short; when that one has
/// permits and another has not, it moves there and keeps its place in time.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) order: Order,
    /// The calls that wait for it: the first, and those that repeated it.
    pub(super) tickets: SmallVec<[Ticket; 1]>,
    pub(super) parked: CounterKey,
    pub(super) place: Place,
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
}

/// Waiting requests by their first ticket.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    by_ticket: HashMap<Ticket, Waiter>,
    /// Tickets of repetitions, and whom they repeat.
    joined: HashMap<Ticket, Ticket>,
    by_timeout: BTreeSet<(Timestamp, Ticket)>,
    issued: u64,
}

impl Waiters {
    pub(super) fn ticket(&mut self) -> Ticket {
        self.issued += 1;
        Ticket(self.issued)
    }

    /// Calls that wait.
    pub(super) fn len(&self) -> usize {
        self.by_ticket.len() + self.joined.len()
    }

    pub(super) fn insert(&mut self, waiter: Waiter) {
        let (_, first) = waiter.place;
        self.by_timeout.insert((waiter.until, first));
        self.by_ticket.insert(first, waiter);
    }

    /// Another call waits for the same request, and until then.
    pub(super) fn join(&mut self, first: Ticket, until: Timestamp) -> Option<Ticket> {
        let ticket = self.ticket();
        let waiter = self.by_ticket.get_mut(&first)?;
        waiter.tickets.push(ticket);
        self.joined.insert(ticket, first);
        if until > waiter.until {
            self.by_timeout.remove(&(waiter.until, first));
            waiter.until = until;
            self.by_timeout.insert((until, first));
        }
        Some(ticket)
    }

    /// A call no longer waits. The request with it, when it was the last one.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Left {
        let first = self.joined.remove(&ticket).unwrap_or(ticket);
        let Some(waiter) = self.by_ticket.get_mut(&first) else {
            return Left::NotWaiting;
        };
        waiter.tickets.retain(|waiting| *waiting != ticket);
        if !waiter.tickets.is_empty() {
            return Left::OthersWait;
        }
        self.remove(first)
            .map_or(Left::NotWaiting, |waiter| Left::Last(Box::new(waiter)))
    }

    pub(super) fn get(&self, first: Ticket) -> Option<&Waiter> {
        self.by_ticket.get(&first)
    }

    pub(super) fn park(&mut self, first: Ticket, key: CounterKey) {
        if let Some(waiter) = self.by_ticket.get_mut(&first) {
            waiter.parked = key;
        }
    }

    pub(super) fn remove(&mut self, first: Ticket) -> Option<Waiter> {
        let waiter = self.by_ticket.remove(&first)?;
        self.by_timeout.remove(&(waiter.until, first));
        for ticket in &waiter.tickets {
            self.joined.remove(ticket);
        }
        Some(waiter)
    }

    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.by_timeout.first().map(|(until, _)| *until)
    }

    /// A request whose wait is over.
    pub(super) fn timed_out(&mut self, now: Timestamp) -> Option<Waiter> {
        let (until, first) = self.by_timeout.first().copied()?;
        if until > now {
            return None;
        }
        self.remove(first)
    }
}

/// What is left when a call stopped waiting.
#[derive(Debug)]
pub(super) enum Left {
    /// It was not waiting (any more).
    NotWaiting,
    /// Other calls wait for the same request.
    OthersWait,
    /// Nobody waits for this request any more.
    Last(Box<Waiter>),
}
