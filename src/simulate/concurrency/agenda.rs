//! What happens next, in virtual time.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use crate::model::time::Timestamp;

/// Place of an event among those of the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    Arrival,
    Completion,
}

/// Events in the order of time; those of one instant in the order of their turn, then as they
/// were put in.
#[derive(Debug)]
pub(super) struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry<E> {
    place: (Timestamp, Turn, u64),
    event: E,
}

impl<E> Agenda<E> {
    pub(super) const fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            entered: 0,
        }
    }

    pub(super) fn push(&mut self, at: Timestamp, turn: Turn, event: E) {
        self.entered += 1;
        let place = (at, turn, self.entered);
        self.heap.push(Reverse(Entry { place, event }));
    }

    pub(super) fn pop(&mut self) -> Option<(Timestamp, E)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.place.0, entry.event))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place.cmp(&other.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_then_turn_then_order() {
        let mut agenda = Agenda::new();
        let at = Timestamp::from_secs;
        agenda.push(at(2), Turn::Arrival, 'd');
        agenda.push(at(1), Turn::Completion, 'b');
        agenda.push(at(1), Turn::Completion, 'c');
        agenda.push(at(1), Turn::Arrival, 'a');
        let order: String = std::iter::from_fn(|| agenda.pop())
            .map(|(_, event)| event)
            .collect();
        assert_eq!(order, "abcd");
    }
}
