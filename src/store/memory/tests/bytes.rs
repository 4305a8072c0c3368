//! The bound on memory: it holds, and who was there before the flood does not notice.

use super::*;

const BOUND: usize = 1 << 20;
const ANSWERS: [WhenFull; 3] = [WhenFull::EvictSoonest, WhenFull::Deny, WhenFull::Allow];

fn bounded(max_bytes: usize, when_full: WhenFull) -> MemoryStore {
    MemoryStore::new(MemoryOptions {
        max_bytes: NonZeroUsize::new(max_bytes),
        when_full,
        ..MemoryOptions::default()
    })
}

/// Keys as hashes are.
fn spread(n: u64, limit: &Limit, cost: u64) -> Charge<'_> {
    let bits = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Charge::new(CounterKey::from_bits(bits), limit, cost)
}

#[test]
fn a_flood_of_distinct_keys_stays_under_the_bound_and_leaves_a_steady_caller_exact() {
    const BOUND: usize = 48 << 10;
    for (which, algorithm) in algorithms().into_iter().enumerate() {
        let limit = limit(algorithm, 20, MINUTE);
        for when_full in ANSWERS {
            for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
                let (store, alone) = (bounded(BOUND, when_full), roomy());
                let mut flooded = 1_000;
                // Two and a half minutes, with more requests than pass. Where counters give way, a
                // limit that starts anew in a moment anyway is not worth more than others.
                let steps = match when_full {
                    WhenFull::EvictSoonest => 27,
                    WhenFull::Deny | WhenFull::Allow => 100,
                };
                for step in 0..steps {
                    let now = START + Span::from_millis(1_500 * step + step % 7);
                    for _ in 0..3 {
                        let list = [spread(0, &limit, 1)];
                        let steady = store.ask(stacking, &list, now)[0];
                        let told = alone.ask(stacking, &list, now)[0];
                        assert_eq!(steady, told, "{which} {when_full:?} {step}");
                    }
                    for _ in 0..600 {
                        flooded += 1;
                        let _ = store.ask(stacking, &[spread(flooded, &limit, 1)], now);
                    }
                    assert!(store.needed_bytes() <= BOUND);
                    // Pieces and indexes that are not full.
                    assert!(store.bytes() <= BOUND * 5 / 4, "{}", store.bytes());
                }
                assert!(store.pressed_out() > 0, "{which} {when_full:?}");
                assert!(store.needed_bytes() > BOUND / 2);
            }
        }
    }
}

#[test]
fn long_logs_share_the_bound_and_none_admits_more_than_its_limit() {
    let limit = limit(Algorithm::SlidingLog, 2_000, MINUTE);
    // 30 callers that would like 32 KB each.
    for when_full in ANSWERS {
        let store = bounded(BOUND / 2, when_full);
        let mut admitted = vec![0; 30];
        for request in 0..30 * 2_200_u64 {
            let now = START + Span::from_micros(request * 500);
            let caller = request % 30;
            let outcome = store.one(spread(caller, &limit, 1), now);
            admitted[usize::try_from(caller).unwrap()] += u64::from(outcome.allowed);
            if request % 64 == 0 {
                assert!(store.needed_bytes() <= BOUND / 2);
            }
        }
        if store.evicted() == 0 && store.roomless() == 0 {
            assert!(admitted.iter().all(|admitted| *admitted == 2_000));
        }
        assert!(store.len() >= 8, "{when_full:?} {}", store.len());
    }
}

#[test]
fn a_log_finds_room_among_counters() {
    let store = bounded(BOUND, WhenFull::EvictSoonest);
    let (bucket, log) = (
        limit(Algorithm::TokenBucket, 5, MINUTE),
        limit(Algorithm::SlidingLog, 50, MINUTE),
    );
    for n in 100..40_000 {
        assert!(store.one(spread(n, &bucket, 1), START).allowed);
    }
    assert!(store.evicted() > 0);
    let admitted = (0..80).filter(|n| {
        let now = START + Span::from_millis(*n);
        store.one(spread(1, &log, 1), now).allowed
    });
    assert_eq!(admitted.count(), 50);
    assert!(store.needed_bytes() <= BOUND);
}

#[test]
fn what_ended_is_room_for_others() {
    let log = limit(Algorithm::SlidingLog, 50, MINUTE);
    let store = bounded(BOUND, WhenFull::Deny);
    let fill = |store: &MemoryStore, first: u64, now| {
        let callers = first..first + 10_000;
        let passed = callers.filter(|n| store.one(spread(*n, &log, 1), now).allowed);
        passed.count()
    };
    let before = fill(&store, 0, START);
    // A caller costs 142 bytes, and a sixteenth is kept for those who are there.
    assert!((6_000..7_000).contains(&before), "{before}");
    assert!(fill(&store, 10_000, START) < 100);
    let later = START + MINUTE + Span::from_secs(2);
    for shard in 0..store.shards() {
        store.sweep(shard, later);
    }
    assert_eq!((store.len(), store.bytes()), (0, 0));
    assert!(fill(&store, 20_000, later).abs_diff(before) < 100);
}

#[test]
fn a_bound_that_nothing_fits_under_still_answers() {
    for when_full in ANSWERS {
        let store = bounded(1, when_full);
        for algorithm in algorithms() {
            let limit = limit(algorithm, 5, MINUTE);
            let outcome = store.one(spread(1, &limit, 1), START);
            assert_eq!(outcome.allowed, when_full != WhenFull::Deny);
        }
        assert_eq!(store.len(), 0);
    }
}
