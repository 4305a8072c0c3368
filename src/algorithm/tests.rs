//! What all algorithms promise.

use super::*;
use crate::model::limit::Anchor;

/// Seconds since the epoch with a fraction.
fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + Span::from_millis(millis)
}

#[test]
fn clock_windows_count_and_reset_as_the_reference() {
    let clock = Algorithm::FixedWindow(Anchor::Clock);
    let quota = Quota::per(2, Span::from_secs(60)).unwrap();
    let mut state = State::default();
    let told = |outcome: Outcome| {
        let reset = outcome.reset.as_secs_up();
        (
            outcome.allowed,
            outcome.used_before,
            outcome.remaining,
            reset,
        )
    };
    let mut hit = |seconds: u64, cost| {
        let now = Timestamp::from_secs(seconds);
        told(take(&clock, quota, &mut state, now, cost, true))
    };
    assert_eq!(hit(3333, 1), (true, 0, 1, 27));
    assert_eq!(hit(3334, 1), (true, 1, 0, 26));
    assert_eq!(hit(3359, 3), (false, 2, 0, 1));
    assert_eq!(hit(3359, 1), (false, 5, 0, 1));
    assert_eq!(hit(3359, 0), (false, 6, 0, 1));
    assert_eq!(hit(3360, 1), (true, 0, 1, 60));
    let now = at(3_360_001);
    let outcome = look(&clock, quota, &State::default(), now, 3);
    assert_eq!(told(outcome), (false, 0, 2, 60));
    assert_eq!(outcome.retry, Retry::Never);
}
