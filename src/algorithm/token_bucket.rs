//! Token bucket: admits when tokens ≥ cost; refills at units per period up to burst.
//!
//! Kept in the form of the generic cell rate algorithm: not the tokens are stored but the instant
//! at which the bucket is full again (the *theoretical arrival time*). Each unit taken moves it by
//! period ÷ units, which is rarely a whole number of nanoseconds, so it is a fraction with the
//! denominator `units`: thirds and sevenths of a second stay exact for ever.
//!
//! State: the bucket is full at `until − a ÷ units` nanoseconds with 0 ≤ `a` < `units`; `b` is the
//! instant of the last write. At most `burst + rate × W` pass in any W. Source: the virtual
//! scheduling form of ITU-T I.371, annex A.

use super::{
    Outcome, Retry,
    exact::{nanos_up, product, quotient_down, quotient_up, scale_up},
};
use crate::model::{
    limit::{Quota, State},
    time::{Span, Timestamp},
};

/// What is missing from a full bucket at `at`.
struct Level {
    /// Time to refill it, in nanoseconds × units: one unit of the limit is one `period`.
    missing: u128,
    /// The instant this holds at: `now`, or the last write when `now` lies before it.
    at: Timestamp,
}

impl Level {
    fn read(quota: Quota, state: &State, now: Timestamp) -> Self {
        let at = now.max(written(state));
        let until = at.until(state.until).as_nanos();
        let missing = product(until, drain(quota)).saturating_sub(u128::from(state.a));
        Self { missing, at }
    }

    fn write(&self, quota: Quota) -> State {
        if self.missing == 0 {
            return State::default();
        }
        let whole = nanos_up(self.missing, drain(quota));
        let beyond = product(whole.as_nanos(), drain(quota)).saturating_sub(self.missing);
        State {
            until: self.at + whole,
            a: u64::try_from(beyond).unwrap_or(0),
            b: self.at.as_nanos(),
        }
    }
}

/// Outcome of `cost` at `now`, and the state it leaves.
pub(super) fn step(quota: Quota, state: &State, now: Timestamp, cost: u64) -> (Outcome, State) {
    let (burst, period) = (quota.burst(), quota.period().as_nanos());
    let before = settled(quota, state, now);
    let level = Level::read(quota, &before, now);
    let wanted = cost.max(1);
    let ever = quota.units() > 0 && wanted <= burst;
    // The most that may be missing for the cost to pass.
    let bound = product(burst.saturating_sub(wanted), period);
    let allowed = ever && level.missing <= bound;
    let mut missing = level.missing;
    let mut after = before;
    if allowed && cost > 0 {
        missing = missing.saturating_add(product(cost, period));
        after = Level { missing, ..level }.write(quota);
    }
    let retry = if allowed {
        Retry::After(Span::ZERO)
    } else if ever {
        let short = level.missing.saturating_sub(bound);
        let wait = nanos_up(short, drain(quota));
        Retry::After(now.until(level.at).saturating_add(wait))
    } else {
        Retry::Never
    };
    let room = if quota.units() > 0 {
        product(burst, period).saturating_sub(missing)
    } else {
        0
    };
    let outcome = Outcome {
        allowed,
        used_before: quotient_up(level.missing, period),
        remaining: quotient_down(room, period),
        reset: now.until(after.until),
        retry,
        delay: Span::ZERO,
        more: None,
    };
    (outcome, after)
}

/// Refills a settled state by up to `cost` tokens.
pub(super) fn give_back(quota: Quota, state: &mut State, now: Timestamp, cost: u64) -> u64 {
    let period = quota.period().as_nanos();
    let level = Level::read(quota, state, now);
    let missing = level.missing.saturating_sub(product(cost, period));
    let freed = quotient_down(level.missing, period).min(cost);
    *state = Level { missing, ..level }.write(quota);
    freed
}

/// Keeps what is missing, in units and fractions of a unit; it refills at the new rate.
pub(super) fn carry(old: Quota, new: Quota, state: &State, now: Timestamp) -> State {
    let state = settled(old, state, now);
    let level = Level::read(old, &state, now);
    let (from, to) = (old.period().as_nanos(), new.period().as_nanos());
    let missing = scale_up(level.missing, to, from);
    Level { missing, ..level }.write(new)
}

/// The state as it stands at `now`: fresh once full, moved to `now` as it is if the clock stepped
/// back by more than a period.
pub(super) fn settled(quota: Quota, state: &State, now: Timestamp) -> State {
    if state.until <= now {
        return State::default();
    }
    let ahead = now.until(written(state));
    if ahead <= quota.period() {
        return *state;
    }
    State {
        until: state.until - ahead,
        a: state.a,
        b: now.as_nanos(),
    }
}

/// Units that come back per period. A closed limit refuses everything, but what was used of it
/// before it was closed still has to be written somehow: it comes back one per period.
fn drain(quota: Quota) -> u64 {
    quota.units().max(1)
}

fn written(state: &State) -> Timestamp {
    Timestamp::from_nanos(state.b)
}
