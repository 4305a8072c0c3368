//! Pure integer arithmetic, one file per algorithm: (state, quota, now, cost) → outcome.
//!
//! No clock, no lock, no I/O, no logging, no panic: given a state, an algorithm cannot fail.
//! Windows are half open, refusals consume nothing, hints are exact to the nanosecond and true:
//! whoever waits exactly `retry` is admitted if nobody else came, one nanosecond less is refused.
//!
//! # The four verbs
//!
//! [`look`] answers without writing, [`take`] commits what it admits, [`give_back`] refunds,
//! [`carry`] moves a state to a changed limit. All of them work on the 24 bytes of [`State`], which
//! mean something else to each algorithm. [`Algorithm::SlidingLog`] alone needs more: its verbs
//! are in [`sliding_log`] and work on a [`sliding_log::Log`]; here it is closed.
//!
//! # A clock that stepped back
//!
//! A state remembers an instant, and `now` may lie before it. By up to one period (threads that
//! overtake each other, a small correction of the date) the state stands still until `now` has
//! caught up: nobody is freed or charged for the same instant twice. By more than that, the state
//! is moved to `now` with all that is used: nobody is freed, and nobody waits for the old date.
//! [`take`] writes that move; a store that only looks should call [`settle`] first, so that the
//! next look still knows when the move happened.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)
)]

pub(crate) mod calendar;
pub mod concurrency;
mod exact;
mod fixed_window;
mod leaky_bucket;
mod leaky_queue;
pub mod sliding_log;
mod sliding_window;
mod token_bucket;

use crate::model::{
    limit::{Algorithm, Quota, State},
    time::{Span, Timestamp},
};

/// When the same cost would pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After this long, if nobody else comes; zero when it passes now.
    After(Span),
    /// Never: the cost is more than the limit can ever hold.
    Never,
}

/// What an algorithm says of one cost against one state.
///
/// A cost of 0 is a peek: `allowed`, `retry` and `delay` are those of one unit, nothing is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// Whether the cost passes (for a peek: whether one unit would).
    pub allowed: bool,
    /// Units used before this request, as the algorithm counts them: what is missing from the
    /// limit. More than the limit after it was lowered, or where refused costs are counted.
    pub used_before: u64,
    /// Units that could still be taken at once after this request, rounded down.
    pub remaining: u64,
    /// From now until nothing is used any more if nobody else comes: the bucket is full, the window
    /// has ended. Zero when nothing is used, except that fixed windows of the clock and of the
    /// calendar always tell the end of the present window.
    pub reset: Span,
    /// When the same cost would pass.
    pub retry: Retry,
    /// The shaper only: how long the admitted request has to be held.
    pub delay: Span,
    /// From now until one unit more than `remaining` can be taken, if nobody else comes. Not every
    /// answer tells it, so the algorithms leave it out and a store that is asked for it looks for
    /// `remaining` + 1. None as well where nothing more ever comes: nothing is used, or the limit is
    /// closed.
    pub more: Option<Span>,
}

impl Outcome {
    /// What a limit that lets nothing through says.
    const CLOSED: Self = Self {
        allowed: false,
        used_before: 0,
        remaining: 0,
        reset: Span::ZERO,
        retry: Retry::Never,
        delay: Span::ZERO,
        more: None,
    };
}

/// What `cost` would be told at `now`. Writes nothing; `cost` 0 asks for one unit without taking it.
pub fn look(
    algorithm: &Algorithm,
    quota: Quota,
    state: &State,
    now: Timestamp,
    cost: u64,
) -> Outcome {
    step(algorithm, quota, state, now, cost, false, |outcome, _| {
        outcome
    })
}

/// Takes `cost` if it passes at `now`. A refused cost changes nothing that anybody could see, unless
/// `count_denied`: then a fixed window counts it beyond its limit, as the reference service does
/// (`INCRBY` first, compare afterwards); other algorithms ignore the flag. `cost` 0 never writes.
pub fn take(
    algorithm: &Algorithm,
    quota: Quota,
    state: &mut State,
    now: Timestamp,
    cost: u64,
    count_denied: bool,
) -> Outcome {
    let before = *state;
    step(
        algorithm,
        quota,
        &before,
        now,
        cost,
        count_denied,
        |outcome, after| {
            if cost > 0 {
                *state = after;
            }
            outcome
        },
    )
}

/// Gives back up to `cost` units: a counter never falls below nothing used, a bucket never rises
/// above full. Returns the whole units that were taken off.
pub fn give_back(
    algorithm: &Algorithm,
    quota: Quota,
    state: &mut State,
    now: Timestamp,
    cost: u64,
) -> u64 {
    settle(algorithm, quota, state, now);
    match algorithm {
        Algorithm::FixedWindow(_) => fixed_window::give_back(state, cost),
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWindow => sliding_window::give_back(state, cost),
        Algorithm::TokenBucket => token_bucket::give_back(quota, state, now, cost),
        Algorithm::LeakyBucket => leaky_bucket::give_back(quota, state, now, cost),
        Algorithm::LeakyQueue => leaky_queue::give_back(quota, state, now, cost),
    }
}

/// The state for the `new` limit that keeps what is *used* of the `old` one at `now`, also when
/// that is more than the new limit holds. A changed algorithm starts afresh; another anchor of the
/// fixed window is not another algorithm.
pub fn carry(
    old: (&Algorithm, Quota),
    new: (&Algorithm, Quota),
    state: &State,
    now: Timestamp,
) -> State {
    if old == new {
        return *state;
    }
    match (old.0, new.0) {
        (Algorithm::FixedWindow(from), Algorithm::FixedWindow(to)) => {
            fixed_window::carry((from, old.1), (to, new.1), state, now)
        }
        (Algorithm::SlidingWindow, Algorithm::SlidingWindow) => {
            sliding_window::carry(old.1, new.1, state, now)
        }
        (Algorithm::TokenBucket, Algorithm::TokenBucket) => {
            token_bucket::carry(old.1, new.1, state, now)
        }
        (Algorithm::LeakyBucket, Algorithm::LeakyBucket) => {
            leaky_bucket::carry(old.1, new.1, state, now)
        }
        (Algorithm::LeakyQueue, Algorithm::LeakyQueue) => {
            leaky_queue::carry(old.1, new.1, state, now)
        }
        _ => State::default(),
    }
}

/// Brings a state to the time line of `now`: what has ended becomes the fresh state, what lies more
/// than a period ahead (the clock stepped back) is moved to `now` with all that is used.
pub fn settle(algorithm: &Algorithm, quota: Quota, state: &mut State, now: Timestamp) {
    *state = match algorithm {
        Algorithm::FixedWindow(anchor) => fixed_window::settled(anchor, quota, state, now),
        Algorithm::SlidingLog => State::default(),
        Algorithm::SlidingWindow => sliding_window::settled(quota, state, now),
        Algorithm::TokenBucket => token_bucket::settled(quota, state, now),
        Algorithm::LeakyBucket => leaky_bucket::settled(quota, state, now),
        Algorithm::LeakyQueue => leaky_queue::settled(quota, state, now),
    };
}

/// What becomes of the outcome and of the state that a [`take`] would leave. Both are known to
/// `then` algorithm by algorithm: handed back together they would be copied about.
#[inline]
fn step(
    algorithm: &Algorithm,
    quota: Quota,
    state: &State,
    now: Timestamp,
    cost: u64,
    count_denied: bool,
    then: impl FnOnce(Outcome, State) -> Outcome,
) -> Outcome {
    let with = |(outcome, after)| then(outcome, after);
    match algorithm {
        Algorithm::FixedWindow(anchor) => with(fixed_window::step(
            anchor,
            quota,
            state,
            now,
            cost,
            count_denied,
        )),
        Algorithm::SlidingLog => with((Outcome::CLOSED, *state)),
        Algorithm::SlidingWindow => with(sliding_window::step(quota, state, now, cost)),
        Algorithm::TokenBucket => with(token_bucket::step(quota, state, now, cost)),
        Algorithm::LeakyBucket => with(leaky_bucket::step(quota, state, now, cost)),
        Algorithm::LeakyQueue => with(leaky_queue::step(quota, state, now, cost)),
    }
}

#[cfg(test)]
mod tests;
