//! Forty requests over a tenth of a second from 0.10 s, forty more from 1.00 s, against ten per
//! second: the largest number that each algorithm admits within one second.

use super::*;

const SECOND: Span = Span::from_secs(1);

/// When the requests come.
fn arrivals() -> impl Iterator<Item = Timestamp> {
    let burst =
        |from: u64| (0..40).map(move |n| START + millis(from) + Span::from_micros(2_500 * n));
    burst(100).chain(burst(1_000))
}

/// The most instants within any half-open second.
fn most_in_a_second(instants: &[Timestamp]) -> usize {
    let within = |end: &Timestamp| {
        let inside = |at: &&Timestamp| **at <= *end && end.since(**at) < SECOND;
        instants.iter().filter(inside).count()
    };
    instants.iter().map(within).max().unwrap_or(0)
}

#[test]
fn burst_shows_what_each_algorithm_lets_through() {
    let quota = Quota::per(10, SECOND).unwrap();
    let most = |algorithm: Algorithm| {
        let mut counter = Counter::new(algorithm, quota);
        let mut passed = Vec::new();
        for now in arrivals() {
            let outcome = counter.take(now, 1);
            if outcome.allowed {
                passed.push(now + outcome.delay);
            }
        }
        most_in_a_second(&passed)
    };
    assert_eq!(most(Algorithm::FixedWindow(Anchor::Clock)), 20);
    assert_eq!(most(Algorithm::SlidingLog), 10);
    assert_eq!(most(Algorithm::SlidingWindow), 11);
    assert_eq!(most(Algorithm::TokenBucket), 19);
    assert_eq!(most(Algorithm::LeakyBucket), 19);
    assert_eq!(most(Algorithm::LeakyQueue), 10);
}

#[test]
fn estimate_of_one_more_is_the_seeds_rule() {
    // 80 in the previous minute, 30 in this one, 15 s into it: 80 × ¾ + 30 = 90 of 100.
    let quota = Quota::per(100, Span::from_secs(60)).unwrap();
    let mut counter = Counter::new(Algorithm::SlidingWindow, quota);
    assert!(counter.take(START, 80).allowed);
    assert!(counter.take(START + Span::from_secs(60), 20).allowed);
    let now = START + Span::from_secs(75);
    assert!(counter.take(now, 10).allowed);
    assert_eq!(counter.look(now, 0).used_before, 90);
    assert!(counter.look(now, 10).allowed);
    assert!(!counter.look(now, 11).allowed);
    // An instant later the estimate is below 90: one more passes than at 90 exactly.
    assert!(counter.look(now + Span::from_nanos(1), 11).allowed);
}
