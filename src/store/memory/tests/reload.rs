//! A limit that changed under its counters, and a clock that steps back.

use super::*;
use crate::algorithm::Retry;

#[test]
fn raising_and_lowering_keeps_what_was_used() {
    for algorithm in algorithms() {
        let old = limit(algorithm.clone(), 10, MINUTE);
        for (units, left) in [(15, 9), (8, 2), (6, 0), (3, 0)] {
            let new = changed(&old, algorithm.clone(), units, MINUTE);
            let store = roomy();
            assert!(store.one(charge(1, &old, 6), START).allowed);
            let peek = store.one(charge(1, &new, 0), START);
            assert_eq!(peek.used_before, 6, "{algorithm:?} {units}");
            assert_eq!(peek.remaining, left, "{algorithm:?} {units}");
            let ask = |cost| {
                let list = [charge(1, &new, cost)];
                store.ask(Stacking::AllOrNothing, &list, START)[0].allowed
            };
            assert!(!ask(left + 1), "{algorithm:?} {units}");
            assert!(left == 0 || ask(left), "{algorithm:?} {units}");
        }
    }
}

#[test]
fn another_period_keeps_what_was_used() {
    for algorithm in algorithms() {
        let old = limit(algorithm.clone(), 10, MINUTE);
        for period in [Span::from_secs(30), Span::from_secs(600)] {
            let new = changed(&old, algorithm.clone(), 10, period);
            let store = roomy();
            assert!(store.one(charge(1, &old, 6), START).allowed);
            let used = store.used(1, &new, START);
            assert_eq!(used, 6, "{algorithm:?} {period:?}");
        }
    }
}

#[test]
fn after_a_change_hints_are_true_without_anybody_passing() {
    // Refused requests and peeks write nothing that they would take, but the change has to count
    // from the first of them on: a hint counts from now.
    for algorithm in algorithms() {
        for (from, to) in [(60, 10), (10, 60)] {
            let old = limit(algorithm.clone(), 10, Span::from_secs(from));
            let new = changed(&old, algorithm.clone(), 10, Span::from_secs(to));
            let store = roomy();
            assert!(store.one(charge(1, &old, 10), START).allowed);
            let ask = |at| {
                let outcomes = store.ask(Stacking::AllOrNothing, &[charge(1, &new, 1)], at);
                outcomes[0]
            };
            let mut now = START + Span::from_millis(10);
            let told = ask(now).retry;
            let Retry::After(wait) = told else {
                panic!("{told:?}")
            };
            let end = now + wait;
            while now + Span::from_millis(700) < end {
                now = now + Span::from_millis(700);
                let again = ask(now);
                assert_eq!(
                    again.retry,
                    Retry::After(now.until(end)),
                    "{algorithm:?} {from} {to}"
                );
            }
            assert!(
                !ask(end - Span::from_nanos(1)).allowed,
                "{algorithm:?} {from} {to}"
            );
            assert!(ask(end).allowed, "{algorithm:?} {from} {to}");
        }
    }
}

#[test]
fn what_a_sweep_forgets_under_the_old_period_is_not_there_under_a_longer_one() {
    for algorithm in algorithms() {
        let old = limit(algorithm.clone(), 10, Span::from_secs(10));
        let new = changed(&old, algorithm.clone(), 10, Span::from_secs(600));
        for after in [1, 9, 10, 15, 25] {
            let (swept, kept) = (roomy(), roomy());
            for store in [&swept, &kept] {
                assert!(store.one(charge(1, &old, 3), START).allowed);
                let later = START + Span::from_secs(5);
                assert!(store.one(charge(1, &old, 2), later).allowed);
            }
            let now = START + Span::from_secs(after);
            for shard in 0..swept.shards() {
                swept.sweep(shard, now);
            }
            let peek = charge(1, &new, 0);
            assert_eq!(
                swept.one(peek, now),
                kept.one(peek, now),
                "{algorithm:?} {after}"
            );
        }
    }
}

#[test]
fn a_longer_period_holds_until_its_end() {
    let old = limit(Algorithm::SlidingLog, 3, Span::from_secs(10));
    let new = changed(&old, Algorithm::SlidingLog, 3, Span::from_secs(600));
    let store = roomy();
    assert!(store.one(charge(1, &old, 3), START).allowed);
    assert!(!store.one(charge(1, &new, 1), START).allowed);
    let later = START + Span::from_secs(20);
    for shard in 0..store.shards() {
        store.sweep(shard, later);
    }
    assert!(!store.one(charge(1, &new, 1), later).allowed);
    assert!(
        store
            .one(charge(1, &new, 1), START + Span::from_secs(600))
            .allowed
    );
}

#[test]
fn several_changes_are_read_one_by_one_or_at_once() {
    let first = limit(Algorithm::TokenBucket, 10, MINUTE);
    let second = changed(&first, Algorithm::TokenBucket, 20, MINUTE);
    let third = changed(&second, Algorithm::TokenBucket, 20, Span::from_secs(30));
    for steps in [vec![&third], vec![&second, &third]] {
        let store = roomy();
        assert!(store.one(charge(1, &first, 7), START).allowed);
        for limit in &steps {
            assert_eq!(store.used(1, limit, START), 7);
        }
    }
}

#[test]
fn versions_go_round() {
    let mut old = limit(Algorithm::TokenBucket, 10, MINUTE);
    old.version = u32::from(u16::MAX);
    let new = changed(&old, Algorithm::TokenBucket, 10, Span::from_secs(30));
    let store = roomy();
    assert!(store.one(charge(1, &old, 7), START).allowed);
    assert_eq!(store.used(1, &new, START), 7);
    let reset = store.one(charge(1, &new, 0), START).reset;
    assert_eq!(reset, Span::from_secs(21));
}

#[test]
fn a_clock_that_steps_back_locks_nobody_out() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 4, MINUTE);
        for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
            let store = roomy();
            let before = START + Span::from_secs(86_400);
            assert!(store.one(charge(1, &limit, 4), before).allowed);
            // A day back: nobody is freed by it.
            let refused = store.ask(stacking, &[charge(1, &limit, 1)], START)[0];
            assert!(!refused.allowed, "{:?}", limit.algorithm);
            // Nobody passes, everybody only asks, and still the wait comes to its end.
            let Retry::After(wait) = refused.retry else {
                panic!("{:?}", limit.algorithm);
            };
            // The counter of two windows needs both to leave.
            let longest = Span::from_secs(120).saturating_add(Span::from_nanos(1));
            assert!(wait <= longest, "{:?} {wait:?}", limit.algorithm);
            let early = START + wait - Span::from_nanos(1);
            let ask = |at| store.ask(stacking, &[charge(1, &limit, 1)], at)[0].allowed;
            assert!(!ask(START + Span::from_secs(1)));
            assert!(!ask(early), "{:?}", limit.algorithm);
            assert!(ask(START + wait), "{:?}", limit.algorithm);
        }
    }
}

#[test]
fn peeks_after_a_step_back_come_to_an_end_as_well() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 4, MINUTE);
        let store = roomy();
        let before = START + Span::from_secs(86_400);
        assert!(store.one(charge(1, &limit, 4), before).allowed);
        let peek = |seconds| store.one(charge(1, &limit, 0), START + Span::from_secs(seconds));
        assert!(!peek(0).allowed);
        assert!(!peek(1).allowed);
        assert!(peek(180).allowed, "{:?}", limit.algorithm);
    }
}
