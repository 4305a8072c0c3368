//! Leaky bucket as a queue, the shaper: admits while one of its burst places is free; what it
//! admits leaves one by one, period ÷ units apart, and waits for its turn.
//!
//! The queue is a [leaky bucket](super::leaky_bucket) whose level is the number of those that wait:
//! the instant at which it is empty is the instant at which the latest one leaves. The first to
//! come to an empty queue leaves one interval later, so no more than `units` leave in any period
//! whatever comes in; the longest wait is burst × period ÷ units.

use super::{Outcome, leaky_bucket};
use crate::model::{
    limit::{Quota, State},
    time::Timestamp,
};

/// A refund frees places at the end of the queue: those that wait keep their turn.
pub(super) use super::leaky_bucket::{carry, give_back, settled};

/// Outcome of `cost` at `now`, and the state it leaves. The delay of a cost of several units is
/// that of its last one.
pub(super) fn step(quota: Quota, state: &State, now: Timestamp, cost: u64) -> (Outcome, State) {
    let (mut outcome, after) = leaky_bucket::step(quota, state, now, cost);
    if outcome.allowed {
        // The queue is empty again when its latest has left.
        outcome.delay = match cost {
            0 => leaky_bucket::step(quota, state, now, 1).0.reset,
            _ => outcome.reset,
        };
    }
    (outcome, after)
}
