//! Many threads at once, with real threads.

use std::{sync::Barrier, thread};

use super::*;

const THREADS: u64 = 8;

/// Lets all threads do the same at the same time, and adds up what they report.
fn together(work: impl Fn(u64, &Barrier) -> u64 + Sync) -> u64 {
    let barrier = Barrier::new(usize::try_from(THREADS).unwrap());
    thread::scope(|scope| {
        let (work, barrier) = (&work, &barrier);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread, barrier)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    })
}

#[test]
fn all_or_nothing_never_lets_a_sum_pass_a_limit() {
    for algorithm in [
        fixed(Anchor::Clock),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
    ] {
        // Two limits, so that one can refuse what the other would let pass.
        let (wide, narrow) = (
            limit(algorithm.clone(), 12, MINUTE),
            limit(algorithm, 10, MINUTE),
        );
        let store = roomy();
        let passed = together(|thread, barrier| {
            let mut passed = 0;
            for round in 0..1_000 {
                let (a, b) = (round * 2, round * 2 + 1);
                // Half of the threads name them the other way round.
                let list = if thread % 2 == 0 {
                    [charge(a, &wide, 1), charge(b, &narrow, 1)]
                } else {
                    [charge(b, &narrow, 1), charge(a, &wide, 1)]
                };
                barrier.wait();
                for _ in 0..2 {
                    let outcomes = store.ask(Stacking::AllOrNothing, &list, START);
                    passed += u64::from(outcomes.iter().all(|outcome| outcome.allowed));
                }
            }
            passed
        });
        assert_eq!(passed, 10_000, "{:?}", wide.algorithm);
        for round in 0..1_000 {
            // Exactly what passed was taken, from both.
            assert_eq!(store.used(round * 2, &wide, START), 10);
            assert_eq!(store.used(round * 2 + 1, &narrow, START), 10);
        }
    }
}

#[test]
fn nobody_is_refused_when_there_is_enough_for_all() {
    let limit = limit(Algorithm::TokenBucket, THREADS * 3, MINUTE);
    let store = roomy();
    let passed = together(|_, barrier| {
        let mut passed = 0;
        for round in 0..1_000 {
            let list = [
                charge(round, &limit, 1),
                charge(round + 1_000_000, &limit, 1),
            ];
            barrier.wait();
            for _ in 0..3 {
                let outcomes = store.ask(Stacking::AllOrNothing, &list, START);
                passed += u64::from(outcomes.iter().all(|outcome| outcome.allowed));
            }
        }
        passed
    });
    assert_eq!(passed, THREADS * 3 * 1_000);
}

#[test]
fn overlapping_requests_do_not_lock_each_other_out() {
    // Few shards, many counters per request, in another order each time.
    let store = store(2_048, WhenFull::Deny);
    assert_eq!(store.shards(), 4);
    let limit = limit(Algorithm::TokenBucket, 1_000_000, MINUTE);
    let asked = together(|thread, barrier| {
        barrier.wait();
        let mut random = thread + 1;
        for _ in 0..5_000 {
            let mut list = Vec::new();
            for _ in 0..6 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                list.push(charge((random >> 33) % 10, &limit, 1));
            }
            let outcomes = store.ask(Stacking::AllOrNothing, &list, START);
            assert!(outcomes.iter().all(|outcome| outcome.allowed));
            store.sweep(usize::try_from(random >> 62).unwrap(), START);
        }
        5_000 * 6
    });
    let used: u64 = (0..10).map(|n| store.used(n, &limit, START)).sum();
    assert_eq!(used, asked);
}

#[test]
fn refunds_and_charges_at_once_lose_nothing() {
    let limit = limit(fixed(Anchor::Clock), 1_000_000, MINUTE);
    let store = roomy();
    let _ = together(|_, barrier| {
        barrier.wait();
        for _ in 0..2_000 {
            let taken = charge(1, &limit, 3);
            assert!(store.one(taken, START).allowed);
            let given = Charge {
                refund: true,
                cost: 2,
                ..taken
            };
            assert!(store.one(given, START).allowed);
        }
        0
    });
    assert_eq!(store.used(1, &limit, START), THREADS * 2_000);
}
