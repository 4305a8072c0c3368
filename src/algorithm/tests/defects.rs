//! What peers got wrong, each as a case that must not come back.

use super::*;

const SECOND: Span = Span::from_secs(1);

fn bucket(units: u64, period: Span, burst: u64) -> Counter {
    Counter::new(
        Algorithm::TokenBucket,
        Quota::new(units, period, burst).unwrap(),
    )
}

/// How many of `calls` pass at one instant.
fn hammer(counter: &mut Counter, now: Timestamp, calls: u64) -> usize {
    (0..calls).filter(|_| counter.take(now, 1).allowed).count()
}

#[test]
fn t01_burst_of_one_admits_one() {
    let mut counter = bucket(1, Span::from_secs(60), 1);
    assert_eq!(hammer(&mut counter, START, 4), 1);
}

#[test]
fn t02_idle_time_earns_no_more_than_the_burst() {
    for idle in [5, 8, 9, 100] {
        let mut counter = bucket(1, SECOND, 10);
        assert!(counter.take(START, 1).allowed);
        let now = START + Span::from_secs(idle);
        assert_eq!(hammer(&mut counter, now, 100), 10);
    }
}

#[test]
fn t03_a_drained_bucket_just_before_it_is_full() {
    let mut counter = bucket(1, SECOND, 100);
    assert!(counter.take(START, 100).allowed);
    let now = START + Span::from_secs(100) - Span::from_nanos(1);
    assert_eq!(hammer(&mut counter, now, 300), 99);
    assert_eq!(hammer(&mut counter, now + Span::from_nanos(1), 300), 1);
}

#[test]
fn t04_more_than_the_bucket_holds_is_never() {
    let counter = bucket(1, SECOND, 5);
    for later in [0, 5, 100] {
        let outcome = counter.look(START + Span::from_secs(later), 7);
        assert!(!outcome.allowed);
        assert_eq!(outcome.retry, Retry::Never);
    }
}

#[test]
fn t05_hints_below_a_second_are_not_zero() {
    let mut counter = bucket(10, SECOND, 10);
    assert!(counter.take(START, 10).allowed);
    let Retry::After(wait) = counter.take(START + millis(1), 1).retry else {
        panic!("one fits")
    };
    assert_eq!((wait.as_millis_up(), wait.as_secs_up()), (99, 1));
}

#[test]
fn t06_t07_peeks_tell_the_truth() {
    let mut counter = bucket(1, SECOND, 5);
    let fresh = counter.look(START, 0);
    assert!(fresh.allowed);
    assert_eq!((fresh.remaining, fresh.reset), (5, Span::ZERO));
    assert!(counter.take(START, 5).allowed);
    let drained = counter.look(START, 0);
    assert!(!drained.allowed);
    assert_eq!(drained.retry, Retry::After(SECOND));
    assert_eq!(drained.reset, Span::from_secs(5));
}

#[test]
fn t09_largest_burst_and_period_of_32_bits() {
    let (burst, period) = (2_147_483_647, Span::from_secs(2_147_483_647));
    let mut counter = bucket(burst, period, burst);
    assert!(counter.take(START, 1).allowed);
    assert_eq!(counter.look(START, 0).remaining, burst - 1);
    assert!(Quota::new(1, period, burst).is_err());
}

#[test]
fn t10_v13_sustained_calls_get_the_burst_and_the_rate() {
    for (burst, admitted) in [(2, 11), (3, 12), (5, 14)] {
        let mut counter = bucket(1, Span::from_secs(10), burst);
        let calls = (0..100_000).map(|n| START + millis(n));
        let passed = calls.filter(|now| counter.take(*now, 1).allowed).count();
        assert_eq!(passed, admitted, "burst {burst}");
    }
}

#[test]
fn governor_no_extra_cell_after_idling() {
    let mut counter = bucket(5, SECOND, 5);
    assert_eq!(hammer(&mut counter, START, 10), 5);
    assert_eq!(hammer(&mut counter, START + Span::from_secs(2), 10), 5);
}

#[test]
fn governor_waits_are_accurate_for_every_capacity() {
    for capacity in (1..10_000).step_by(37) {
        let mut counter = bucket(capacity, SECOND, capacity);
        assert!(counter.take(START, capacity).allowed);
        let mut now = START;
        for _ in 0..20 {
            let Retry::After(wait) = counter.look(now, 1).retry else {
                panic!("one fits")
            };
            for fraction in 1..10 {
                let earlier = Span::from_nanos(wait.as_nanos() * fraction / 10);
                assert!(!counter.look(now + earlier, 1).allowed);
            }
            now = now + wait;
            assert!(counter.take(now, 1).allowed);
        }
    }
}

#[test]
fn rates_that_are_no_whole_nanoseconds_stay_exact() {
    let day = Span::from_secs(86_400);
    for (units, period) in [(3, SECOND), (7, SECOND), (7, day), (600_000_000, SECOND)] {
        let mut counter = bucket(units, period, units);
        assert!(counter.take(START, units).allowed);
        // As much as comes back, whenever it does, for a thousand periods.
        let mut taken: u64 = 0;
        for period_no in 1..=1_000 {
            for part in 1..=4 {
                let nanos = period.as_nanos() * (period_no - 1) + period.as_nanos() * part / 4;
                let now = START + Span::from_nanos(nanos);
                let left = counter.look(now, 0).remaining;
                assert!(left == 0 || counter.take(now, left).allowed);
                taken += left;
            }
            assert_eq!(taken, units * period_no);
        }
    }
}
