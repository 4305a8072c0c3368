//! The requests that wait for one key, in the order in which they are served.

use std::collections::BTreeMap;

use crate::{
    model::{
        lease::Criticality,
        time::{Span, Timestamp},
    },
    store::lease::ask::Ticket,
};

/// Age of a queue from which the newest goes first, if the rule wants that.
const STANDING: Span = Span::from_millis(100);

/// Who goes before whom: smaller ranks first. Criticality decides, then the fair share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct Rank(pub(super) u8);

impl Rank {
    /// The rank of a class.
    pub(in crate::store) fn of(class: Criticality, above_share: bool) -> Self {
        Self(2 * class.rank() + u8::from(above_share))
    }
}

/// A waiting request as its queue sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) permits: u64,
    /// When it began to wait, here or elsewhere.
    pub(super) since: Timestamp,
}

/// Place of a request: rank, then ticket, which grows with time.
pub(super) type Place = (Rank, Ticket);

/// Waiting requests of one key.
#[derive(Debug, Default)]
pub(super) struct Queue {
    parked: BTreeMap<Place, Parked>,
    permits: u64,
    /// Since when it was never empty.
    standing: Option<Timestamp>,
}

impl Queue {
    pub(super) fn push(&mut self, place: Place, parked: Parked, now: Timestamp) {
        self.permits += parked.permits;
        self.parked.insert(place, parked);
        self.standing.get_or_insert(now);
    }

    pub(super) fn remove(&mut self, place: Place) -> bool {
        let Some(parked) = self.parked.remove(&place) else {
            return false;
        };
        self.permits = self.permits.saturating_sub(parked.permits);
        if self.parked.is_empty() {
            self.standing = None;
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    pub(super) fn len(&self) -> u64 {
        self.parked.len() as u64
    }

    /// Permits that all of them want.
    pub(super) const fn permits(&self) -> u64 {
        self.permits
    }

    /// Whether the newest goes first now.
    pub(super) fn is_newest_first(&self, wanted: bool, now: Timestamp) -> bool {
        wanted
            && self
                .standing
                .is_some_and(|since| now.since(since) >= STANDING)
    }

    /// The one that is served after `place`, or the first.
    pub(super) fn after(
        &self,
        place: Option<Place>,
        newest_first: bool,
    ) -> Option<(Place, Parked)> {
        const FIRST: Ticket = Ticket(0);
        const LAST: Ticket = Ticket(u64::MAX);
        let own = |(place, parked): (&Place, &Parked)| (*place, *parked);
        if !newest_first {
            let Some((rank, Ticket(ticket))) = place else {
                return self.parked.first_key_value().map(own);
            };
            let next = (rank, Ticket(ticket.saturating_add(1)));
            return self.parked.range(next..).next().map(own);
        }
        if let Some((rank, ticket)) = place {
            let same = self.parked.range((rank, FIRST)..(rank, ticket)).next_back();
            if let Some(found) = same {
                return Some(own(found));
            }
        }
        let next = place.map_or(Rank(0), |(Rank(rank), _)| Rank(rank.saturating_add(1)));
        let ((rank, _), _) = self.parked.range((next, FIRST)..).next()?;
        self.parked
            .range((*rank, FIRST)..=(*rank, LAST))
            .next_back()
            .map(own)
    }

    /// The one that is served last: it gives way when the queue is full.
    pub(super) fn last(&self) -> Option<Place> {
        self.parked.last_key_value().map(|(place, _)| *place)
    }

    /// Whether a newcomer must not overtake: someone of a better rank waits, or someone of no
    /// worse rank is too heavy for what is free and has been patient for long enough.
    pub(super) fn blocks(&self, rank: Rank, patience: Option<Span>, now: Timestamp) -> bool {
        let Some(((first, _), parked)) = self.parked.first_key_value() else {
            return false;
        };
        let patient = || patience.is_some_and(|patience| parked.since + patience <= now);
        *first < rank || (*first == rank && patient())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Span::from_millis(millis)
    }

    fn queue(places: &[(u8, u64)]) -> Queue {
        let mut queue = Queue::default();
        for (rank, ticket) in places {
            let parked = Parked {
                permits: 2,
                since: at(*ticket),
            };
            queue.push((Rank(*rank), Ticket(*ticket)), parked, at(*ticket));
        }
        queue
    }

    fn order(queue: &Queue, newest_first: bool) -> Vec<u64> {
        let mut order = Vec::new();
        let mut place = None;
        while let Some((next, _)) = queue.after(place, newest_first) {
            order.push(next.1.0);
            place = Some(next);
        }
        order
    }

    #[test]
    fn rank_then_time() {
        let queue = queue(&[(2, 1), (0, 2), (2, 3), (0, 4), (1, 5)]);
        assert_eq!(order(&queue, false), [2, 4, 5, 1, 3]);
        assert_eq!(order(&queue, true), [4, 2, 5, 3, 1]);
        assert_eq!(queue.last(), Some((Rank(2), Ticket(3))));
        assert_eq!((queue.len(), queue.permits()), (5, 10));
    }

    #[test]
    fn newest_first_only_in_a_queue_that_stands() {
        let mut queue = queue(&[(0, 10), (0, 60)]);
        assert!(!queue.is_newest_first(true, at(109)));
        assert!(queue.is_newest_first(true, at(110)));
        assert!(!queue.is_newest_first(false, at(110)));
        assert!(queue.remove((Rank(0), Ticket(10))));
        assert!(queue.is_newest_first(true, at(110)));
        assert!(queue.remove((Rank(0), Ticket(60))));
        assert!(!queue.remove((Rank(0), Ticket(60))));
        assert!(!queue.is_newest_first(true, at(500)));
        assert_eq!(queue.permits(), 0);
    }

    #[test]
    fn better_ranks_and_patient_heavy_ones_block() {
        let queue = queue(&[(2, 10)]);
        assert!(queue.blocks(Rank(3), None, at(10)));
        assert!(!queue.blocks(Rank(2), None, at(900)));
        let patience = Some(Span::from_millis(50));
        assert!(!queue.blocks(Rank(2), patience, at(59)));
        assert!(queue.blocks(Rank(2), patience, at(60)));
        assert!(!queue.blocks(Rank(1), patience, at(60)));
    }
}
