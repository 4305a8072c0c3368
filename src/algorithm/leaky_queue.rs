//! Leaky bucket as a queue, the shaper: admits while one of its burst places is free; what it
//! admits leaves one by one, period ÷ units apart, and waits for its turn.
//!
//! The queue is a [leaky bucket](super::leaky_bucket) whose level is the number of slots that are
//! taken: the instant at which it is empty is the first slot that is free. Who comes to an empty
//! queue leaves at once, so that slots lie period ÷ units apart and no more than `units` leave in
//! any period whatever comes in; the longest wait is (burst − 1) × period ÷ units.

use super::{Outcome, leaky_bucket};
use crate::model::{
    limit::{Quota, State},
    time::Timestamp,
};

/// A refund frees places at the end of the queue: those that wait keep their turn.
pub(super) use super::leaky_bucket::{carry, give_back, settled};

/// Outcome of `cost` at `now`, and the state it leaves. A cost of several units leaves at the first
/// of its slots and keeps the others from those behind it: what comes to an empty queue never
/// waits, whatever it costs.
pub(super) fn step(quota: Quota, state: &State, now: Timestamp, cost: u64) -> (Outcome, State) {
    let (mut outcome, after) = leaky_bucket::step(quota, state, now, cost);
    if outcome.allowed {
        outcome.delay = leaky_bucket::step(quota, state, now, 0).0.reset;
    }
    (outcome, after)
}
