//! Fixed window: admits when count + cost ≤ units in the window that holds `now`.
//!
//! State: `until` the window's end, `a` the count, `b` the window's start. At most `2 × units`
//! pass in any period, across a boundary.

use super::{Outcome, Retry, calendar};
use crate::model::{
    limit::{Anchor, Quota, State},
    time::{Span, Timestamp},
};

/// Outcome of `cost` at `now`, and the state it leaves. With `count_denied` a refused cost is
/// counted too, beyond the limit, but never moves the window: a lock-out ends when it said.
pub(super) fn step(
    anchor: &Anchor,
    quota: Quota,
    state: &State,
    now: Timestamp,
    cost: u64,
    count_denied: bool,
) -> (Outcome, State) {
    let limit = quota.units();
    let before = settled(anchor, quota, state, now);
    let wanted = cost.max(1);
    let allowed = wanted <= limit.saturating_sub(before.a);
    let mut after = before;
    if cost > 0 && (allowed || count_denied) {
        if is_fresh(&before) || (allowed && *anchor == Anchor::LastHit) {
            after = opened(anchor, quota, now.max(start(&before)));
        }
        after.a = before.a.saturating_add(cost);
    }
    let retry = if wanted > limit {
        Retry::Never
    } else if allowed {
        Retry::After(Span::ZERO)
    } else {
        Retry::After(now.until(after.until))
    };
    let outcome = Outcome {
        allowed,
        used_before: before.a,
        remaining: limit.saturating_sub(after.a),
        reset: reset(anchor, quota, &after, now),
        retry,
        delay: Span::ZERO,
        more: None,
    };
    (outcome, after)
}

/// Takes up to `cost` off the count of a settled state; nothing used is as good as fresh.
pub(super) fn give_back(state: &mut State, cost: u64) -> u64 {
    let freed = cost.min(state.a);
    state.a = state.a.saturating_sub(freed);
    if state.a == 0 {
        *state = State::default();
    }
    freed
}

/// Keeps the count. A window that hits open keeps its start and gets its new length; a window of
/// the clock or the calendar becomes the one that holds `now`. When a window of the new length
/// that began at the old start would have passed, nothing is left to keep.
pub(super) fn carry(
    (from, old): (&Anchor, Quota),
    (to, new): (&Anchor, Quota),
    state: &State,
    now: Timestamp,
) -> State {
    let state = settled(from, old, state, now);
    if is_fresh(&state) || (from == to && old.period() == new.period()) {
        return state;
    }
    let now = now.max(start(&state));
    let window = match to {
        Anchor::Clock | Anchor::Calendar(_) => opened(to, new, now),
        Anchor::FirstHit | Anchor::LastHit => opened(to, new, start(&state)),
    };
    let length = start(&window).until(window.until);
    if now.since(start(&state)) >= length {
        return State::default();
    }
    State {
        a: state.a,
        ..window
    }
}

/// The state as it stands at `now`: fresh once its window has ended, moved to the window of `now`
/// if the clock stepped back by more than a window.
pub(super) fn settled(anchor: &Anchor, quota: Quota, state: &State, now: Timestamp) -> State {
    if state.until <= now {
        return State::default();
    }
    let length = start(state).until(state.until);
    if now.until(start(state)) <= length {
        return *state;
    }
    State {
        a: state.a,
        ..opened(anchor, quota, now)
    }
}

/// The empty window that a hit at `now` falls into.
fn opened(anchor: &Anchor, quota: Quota, now: Timestamp) -> State {
    let (start, end) = window(anchor, quota.period(), now);
    State {
        until: end,
        a: 0,
        b: start.as_nanos(),
    }
}

fn window(anchor: &Anchor, period: Span, now: Timestamp) -> (Timestamp, Timestamp) {
    match anchor {
        Anchor::Clock => {
            let start = now.floor(period);
            (start, start + period)
        }
        Anchor::FirstHit | Anchor::LastHit => (now, now + period),
        Anchor::Calendar(calendar) => calendar::window(calendar, now),
    }
}

/// The windows of the clock and the calendar end whether something is used or not.
fn reset(anchor: &Anchor, quota: Quota, state: &State, now: Timestamp) -> Span {
    let runs_alone = matches!(anchor, Anchor::Clock | Anchor::Calendar(_));
    let holds_now = start(state) <= now && now < state.until;
    if runs_alone && !holds_now {
        now.until(window(anchor, quota.period(), now).1)
    } else {
        now.until(state.until)
    }
}

fn is_fresh(state: &State) -> bool {
    state.until == Timestamp::ZERO
}

fn start(state: &State) -> Timestamp {
    Timestamp::from_nanos(state.b)
}
