//! Sliding window counter: two fixed windows of the clock stand in for the sliding one.
//!
//! With `e` the time since the present window began, the last period holds about
//! `prev × (1 − e ÷ period) + cur` units; a cost passes when this estimate, rounded down, plus the
//! cost is at most `units`. For a cost of 1 that is the common rule "estimate < limit". The guess is
//! that the previous window's units were spread evenly: at most `units + prev × e ÷ period`, less
//! than `2 × units`, pass in any period.
//!
//! State: `a` is `prev`, `b` is `cur`, `until` is two periods after the start of cur's window: then
//! both have left. Source: Cloudflare, "How we built rate limiting capable of scaling to millions
//! of domains" (2017).

use super::{
    Outcome, Retry,
    exact::{product, quotient_down, quotient_up},
};
use crate::model::{
    limit::{Quota, State},
    time::{Span, Timestamp},
};

/// Outcome of `cost` at `now`, and the state it leaves.
pub(super) fn step(quota: Quota, state: &State, now: Timestamp, cost: u64) -> (Outcome, State) {
    let limit = quota.units();
    let before = settled(quota, state, now);
    let estimate = Estimate::read(quota, &before, now);
    let wanted = cost.max(1);
    let used_before = estimate.used();
    let allowed = wanted <= limit.saturating_sub(used_before);
    let mut after = before;
    if allowed && cost > 0 {
        if is_fresh(&before) {
            after = opened(quota, now);
        }
        after.b = before.b.saturating_add(cost);
    }
    let retry = if wanted > limit {
        Retry::Never
    } else if allowed {
        Retry::After(Span::ZERO)
    } else {
        let wait = estimate.wait(limit, wanted);
        Retry::After(now.until(estimate.at).saturating_add(wait))
    };
    let outcome = Outcome {
        allowed,
        used_before,
        remaining: limit.saturating_sub(Estimate::read(quota, &after, now).used()),
        reset: reset(quota, &after, now),
        retry,
        delay: Span::ZERO,
        more: None,
    };
    (outcome, after)
}

/// Takes up to `cost` off a settled state, the present window first: there it was most likely
/// taken. Nothing used is as good as fresh.
pub(super) fn give_back(state: &mut State, cost: u64) -> u64 {
    let from_cur = cost.min(state.b);
    let from_prev = cost.saturating_sub(from_cur).min(state.a);
    state.b = state.b.saturating_sub(from_cur);
    state.a = state.a.saturating_sub(from_prev);
    if state.a == 0 && state.b == 0 {
        *state = State::default();
    }
    from_cur.saturating_add(from_prev)
}

/// Keeps the estimate: under another period it counts as used in the window that holds `now`.
pub(super) fn carry(old: Quota, new: Quota, state: &State, now: Timestamp) -> State {
    let state = settled(old, state, now);
    let estimate = Estimate::read(old, &state, now);
    if old.period() == new.period() {
        return state;
    }
    match estimate.used() {
        0 => State::default(),
        used => State {
            b: used,
            ..opened(new, estimate.at)
        },
    }
}

/// The state as it stands at `now`: turned to the window that holds it, fresh once both windows
/// have left. If the clock stepped back by more than a period it is moved to the window after the
/// present one, where all of `prev` counts: moving frees nobody, and the step is over within a
/// period.
pub(super) fn settled(quota: Quota, state: &State, now: Timestamp) -> State {
    if state.until <= now {
        return State::default();
    }
    let period = quota.period();
    let start = start(quota, state);
    if now >= start + period {
        return turned(period, state);
    }
    if now.until(start) <= period {
        return *state;
    }
    State {
        a: state.a,
        b: state.b,
        ..opened(quota, now + period)
    }
}

/// The state one window later.
fn turned(period: Span, state: &State) -> State {
    if state.b == 0 {
        return State::default();
    }
    State {
        until: state.until + period,
        a: state.b,
        b: 0,
    }
}

/// The empty window that holds `now`.
fn opened(quota: Quota, now: Timestamp) -> State {
    let period = quota.period();
    State {
        until: now.floor(period) + period + period,
        a: 0,
        b: 0,
    }
}

/// Until the later of the two windows that holds anything has left.
fn reset(quota: Quota, state: &State, now: Timestamp) -> Span {
    let leaves = match (state.a, state.b) {
        (0, 0) => Timestamp::ZERO,
        (_, 0) => state.until - quota.period(),
        _ => state.until,
    };
    now.until(leaves)
}

/// Both counts at an instant of cur's window.
struct Estimate {
    prev: u64,
    cur: u64,
    period: u64,
    /// Time since cur's window began, less than `period`.
    elapsed: u64,
    /// The instant this holds at: `now`, or the window's start when `now` lies before it.
    at: Timestamp,
}

impl Estimate {
    fn read(quota: Quota, state: &State, now: Timestamp) -> Self {
        let start = start(quota, state);
        let at = now.max(start);
        Self {
            prev: state.a,
            cur: state.b,
            period: quota.period().as_nanos(),
            elapsed: at.since(start).as_nanos(),
            at,
        }
    }

    /// The estimate, rounded down.
    fn used(&self) -> u64 {
        let left = self.period.saturating_sub(self.elapsed);
        let weighted = quotient_down(product(self.prev, left), self.period);
        self.cur.saturating_add(weighted)
    }

    /// From `at`, the least time after which `wanted` (1 to `limit`) passes, now that it does not.
    fn wait(&self, limit: u64, wanted: u64) -> Span {
        let spare = limit.saturating_sub(wanted);
        let passes_at = if self.cur <= spare {
            sinks_to(self.prev, spare.saturating_sub(self.cur), self.period)
        } else {
            // Not before cur has become prev and has sunk.
            sinks_to(self.cur, spare, self.period).saturating_add(self.period)
        };
        Span::from_nanos(passes_at.saturating_sub(self.elapsed))
    }
}

/// The least time into a window after which the weight of `prev`, rounded down, is at most
/// `spare`: `prev × (period − e) < (spare + 1) × period`.
fn sinks_to(prev: u64, spare: u64, period: u64) -> u64 {
    let bound = product(spare.saturating_add(1), period);
    // The most of the period that may be left.
    let left = quotient_up(bound, prev).saturating_sub(1);
    period.saturating_sub(left)
}

fn start(quota: Quota, state: &State) -> Timestamp {
    state.until - quota.period() - quota.period()
}

fn is_fresh(state: &State) -> bool {
    state.until == Timestamp::ZERO
}
