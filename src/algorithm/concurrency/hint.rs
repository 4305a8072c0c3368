//! When a refused caller should come back: Little's law and a virtual queue.
//!
//! With mean hold S and C permits, one comes back every S/C seconds. Whoever needs e more of them
//! than are left waits e·S/C. Refused callers book distinct slots, so that they do not all return
//! together; a booking spaces hints apart, it holds no capacity.

use crate::{
    algorithm::concurrency::real::real,
    model::time::{Span, Timestamp},
};

/// A limit as a hint sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// Permits, at least 1: a limit of 0 allows no prediction.
    pub limit: u64,
    /// Estimated mean hold in seconds.
    pub hold: f64,
}

impl Gate {
    /// Seconds between two permits that come back when all are out: S/C.
    pub fn pace(self) -> f64 {
        self.hold / real(self.limit.max(1))
    }

    /// Permits that must come back before `permits` can be had, while `in_flight` are out and
    /// `ahead` are promised to others: `in flight + ahead + permits − C`. Negative when there
    /// are enough.
    pub fn missing(self, in_flight: u64, ahead: f64, permits: u64) -> f64 {
        real(in_flight) + ahead + real(permits) - real(self.limit)
    }
}

/// Where the promises made to refused callers end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtualQueue {
    until: Timestamp,
}

impl VirtualQueue {
    /// Permits promised and not yet due: `max(0, vq − now)·C/S`.
    pub fn reserved(self, gate: Gate, now: Timestamp) -> f64 {
        let pace = gate.pace();
        if pace > 0.0 {
            self.until.since(now).as_secs_f64() / pace
        } else {
            0.0
        }
    }

    /// Promises `permits` more: `vq ← max(now, vq) + permits·S/C`. Gives back the end of the slot.
    pub fn book(&mut self, permits: u64, gate: Gate, now: Timestamp) -> Timestamp {
        self.until = self.until.max(now) + Self::length(permits, gate);
        self.until
    }

    /// Takes a promise back, because its caller was served early.
    pub fn give_back(&mut self, length: Span, now: Timestamp) {
        self.until = (self.until - length).max(now);
    }

    /// How long a slot of `permits` is: permits·S/C.
    pub fn length(permits: u64, gate: Gate) -> Span {
        Span::from_secs_f64(real(permits) * gate.pace())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::concurrency::{
        cases::{case, close, number, rows},
        real::whole,
    };

    #[test]
    fn hints_as_in_the_cases() {
        for row in rows(&case("little"), "hint") {
            let gate = Gate {
                limit: whole(number(row, "limit")),
                hold: number(row, "S"),
            };
            // `waiting` callers were refused before, the limit is full.
            let hint = gate.missing(gate.limit, number(row, "waiting"), whole(number(row, "w")));
            close(hint * gate.pace(), number(row, "hint_s"), 5e-7);
        }
    }

    #[test]
    fn each_booking_is_the_next_slot() {
        let gate = Gate {
            limit: 30,
            hold: 0.25,
        };
        let now = Timestamp::from_secs(5);
        let mut queue = VirtualQueue::default();
        for n in 1..=30 {
            let hint = gate.missing(30, queue.reserved(gate, now), 1) * gate.pace();
            close(hint, f64::from(n) * 0.25 / 30.0, 1e-6);
            let slot = queue.book(1, gate, now);
            close(slot.since(now).as_secs_f64(), hint, 1e-6);
        }
    }

    #[test]
    fn unused_slots_pass_and_given_back_ones_are_free() {
        let gate = Gate {
            limit: 10,
            hold: 1.0,
        };
        let now = Timestamp::from_secs(5);
        let mut queue = VirtualQueue::default();
        queue.book(5, gate, now);
        close(
            queue.reserved(gate, now + Span::from_millis(200)),
            3.0,
            1e-9,
        );
        assert!(queue.reserved(gate, now + Span::from_secs(1)).abs() < 1e-12);
        queue.give_back(VirtualQueue::length(2, gate), now);
        close(queue.reserved(gate, now), 3.0, 1e-9);
        queue.give_back(Span::from_secs(60), now);
        assert_eq!(queue, VirtualQueue { until: now });
    }

    #[test]
    fn a_lowered_limit_and_a_heavy_request_wait_longer() {
        let gate = Gate {
            limit: 2,
            hold: 0.85,
        };
        close(gate.missing(3, 0.0, 1) * gate.pace(), 0.85, 1e-9);
        let gate = Gate {
            limit: 30,
            hold: 3.0,
        };
        close(gate.missing(25, 0.0, 10) * gate.pace(), 0.5, 1e-9);
    }
}
