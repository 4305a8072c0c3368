//! From the order of the file to the order of time.
//!
//! An access log is written when requests end and tells when they began: lines stand a little out
//! of order. A bounded number of records waits here, the earliest leaves first; of one instant, the
//! one that stands first in the file.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{model::time::Timestamp, trace::record::Record};

/// Records that wait for those that may be earlier.
#[derive(Debug)]
pub struct Order {
    /// Most that wait.
    room: usize,
    waiting: BinaryHeap<Reverse<(Timestamp, u64, usize)>>,
    records: Vec<Record>,
    /// Places in `records` that are free.
    free: Vec<usize>,
}

impl Order {
    /// With room for this many; 0 keeps the order of the file.
    pub fn new(room: usize) -> Self {
        Self {
            room,
            waiting: BinaryHeap::new(),
            records: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Takes a record in, leaving another to be filled in its place.
    pub fn put(&mut self, record: &mut Record) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.records.push(Record::default());
            self.records.len() - 1
        });
        self.waiting
            .push(Reverse((record.time, record.line, place)));
        std::mem::swap(&mut self.records[place], record);
    }

    /// The earliest record, when there are more than the room allows, or when there are any and
    /// none will follow (`last`).
    pub fn take(&mut self, last: bool) -> Option<&Record> {
        if self.waiting.len() <= self.room && !last {
            return None;
        }
        let Reverse((_, _, place)) = self.waiting.pop()?;
        self.free.push(place);
        self.records.get(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(room: usize, times: &[u64]) -> Vec<(u64, u64)> {
        let mut order = Order::new(room);
        let mut seen = Vec::new();
        let mut see = |record: &Record| seen.push((record.time.as_nanos(), record.line));
        for (line, time) in (1..).zip(times) {
            let mut record = Record::default();
            record.line = line;
            record.time = Timestamp::from_nanos(*time);
            order.put(&mut record);
            while let Some(record) = order.take(false) {
                see(record);
            }
        }
        while let Some(record) = order.take(true) {
            see(record);
        }
        assert!(order.records.len() <= room + 1);
        seen
    }

    #[test]
    fn records_leave_in_the_order_of_time_and_then_of_lines() {
        assert_eq!(order(2, &[3, 1, 2, 1]), [(1, 2), (1, 4), (2, 3), (3, 1)]);
        assert_eq!(order(0, &[3, 1, 2]), [(3, 1), (1, 2), (2, 3)]);
        // Too late by more than the room.
        assert_eq!(order(1, &[5, 6, 7, 1]), [(5, 1), (6, 2), (1, 4), (7, 3)]);
    }
}
