//! A full table, and what is forgotten when.

use super::*;
use crate::algorithm::Retry;

fn flood(store: &MemoryStore, limit: &Limit, callers: std::ops::Range<u64>, now: Timestamp) {
    for caller in callers {
        // Spread over all shards, as hashes are.
        let _outcome = store.one(charge(caller, limit, 1), now);
    }
}

#[test]
fn a_flood_of_callers_seen_once_leaves_a_steady_callers_limit_exact() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 20, MINUTE);
        for max_keys in [64, 512] {
            let store = store(max_keys, WhenFull::EvictSoonest);
            let steady = 1_u64 << 40;
            let mut admitted = 0;
            for round in 0..40 {
                let now = START + Span::from_millis(round * 25);
                for _ in 0..2 {
                    admitted += u64::from(store.one(charge(steady, &limit, 1), now).allowed);
                }
                let first = round * 1_000;
                flood(&store, &limit, first..first + 60, now);
            }
            assert_eq!(admitted, 20, "{:?} {max_keys}", limit.algorithm);
            assert!(store.len() <= max_keys);
            assert!(store.pressed_out() > 0);
        }
    }
}

#[test]
fn a_flood_leaves_a_caller_at_its_limit_where_it_is_to_the_end_of_the_window() {
    for algorithm in [
        fixed(Anchor::FirstHit),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
    ] {
        let limit = limit(algorithm, 20, MINUTE);
        let store = store(512, WhenFull::EvictSoonest);
        let steady = charge(1 << 40, &limit, 1);
        for _ in 0..20 {
            assert!(store.one(steady, START).allowed);
        }
        flood(&store, &limit, 0..2_000, START + Span::from_secs(50));
        for milli in 57_000..60_000 {
            let now = START + Span::from_millis(milli);
            flood(&store, &limit, milli * 10..milli * 10 + 10, now);
            let asked = store.one(steady, now);
            assert!(!asked.allowed, "{:?} after {milli} ms", limit.algorithm);
        }
    }
}

#[test]
fn a_flood_on_a_short_limit_leaves_a_quota_of_the_month_exact() {
    let monthly = limit(
        fixed(Anchor::Clock),
        50_000,
        Span::from_secs(30 * 24 * 3_600),
    );
    let burst = limit(Algorithm::TokenBucket, 20, Span::from_secs(10));
    let store = store(512, WhenFull::EvictSoonest);
    assert!(store.one(charge(1 << 40, &monthly, 7), START).allowed);
    for second in 0..20 {
        let now = START + Span::from_secs(second);
        flood(&store, &burst, second * 1_000..second * 1_000 + 1_000, now);
    }
    assert_eq!(
        store.used(1 << 40, &monthly, START + Span::from_secs(20)),
        7
    );
}

#[test]
fn the_bound_holds_for_both_kinds_of_counters_together() {
    let store = store(100, WhenFull::EvictSoonest);
    let (log, bucket) = (
        limit(Algorithm::SlidingLog, 5, MINUTE),
        limit(Algorithm::TokenBucket, 5, MINUTE),
    );
    flood(&store, &bucket, 0..300, START);
    flood(&store, &log, 1_000..1_300, START);
    flood(&store, &bucket, 2_000..2_300, START);
    assert!(store.len() <= 100, "{}", store.len());
}

#[test]
fn a_small_store_holds_as_many_as_it_says() {
    let store = store(1_000, WhenFull::Deny);
    let bucket = limit(Algorithm::TokenBucket, 5, MINUTE);
    let spread = |n: u64| CounterKey::from_bits(u128::from(n) * 0x9e37_79b9_7f4a_7c15_f39c_c060);
    let denied = (0..1_000).filter(|n| {
        let charge = Charge {
            key: spread(*n),
            ..charge(0, &bucket, 1)
        };
        !store.one(charge, START).allowed
    });
    // Shards do not fill alike, but nearly so.
    assert!(denied.count() < 50);
}

#[test]
fn full_tables_deny_what_is_new_and_serve_what_is_there() {
    for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
        let bucket = limit(Algorithm::TokenBucket, 5, MINUTE);
        let store = store(10, WhenFull::Deny);
        flood(&store, &bucket, 0..10, START);
        assert!(store.ask(stacking, &[charge(3, &bucket, 1)], START)[0].allowed);
        let denied = store.ask(stacking, &[charge(10, &bucket, 1)], START)[0];
        assert!(!denied.allowed);
        assert_eq!(denied.retry, Retry::After(Span::from_secs(1)));
        assert_eq!(denied.remaining, 0);
        // A look needs no room, and neither does what can never pass.
        assert!(store.ask(stacking, &[charge(10, &bucket, 0)], START)[0].allowed);
        let never = store.ask(stacking, &[charge(10, &bucket, 6)], START)[0];
        assert_eq!(never.retry, Retry::Never);
        // What is as good as fresh makes room.
        let later = START + MINUTE;
        assert!(store.ask(stacking, &[charge(10, &bucket, 1)], later)[0].allowed);
        assert_eq!(store.len(), 1);
    }
}

#[test]
fn a_request_without_room_for_all_its_counters_takes_none() {
    let bucket = limit(Algorithm::TokenBucket, 5, MINUTE);
    let store = store(10, WhenFull::Deny);
    flood(&store, &bucket, 0..9, START);
    // Room for one, not for two.
    let list = [
        charge(3, &bucket, 1),
        charge(10, &bucket, 1),
        charge(11, &bucket, 1),
    ];
    let outcomes = store.ask(Stacking::AllOrNothing, &list, START);
    assert_eq!(passed(&outcomes), [true, true, false]);
    assert_eq!(store.used(3, &bucket, START), 1);
    assert_eq!(store.len(), 9);
    // The same new counter twice needs one place.
    let list = [charge(10, &bucket, 1), charge(10, &bucket, 1)];
    assert_eq!(
        passed(&store.ask(Stacking::AllOrNothing, &list, START)),
        [true, true]
    );
    assert_eq!(store.used(10, &bucket, START), 2);
}

#[test]
fn full_tables_allow_uncounted_if_told_to() {
    let bucket = limit(Algorithm::TokenBucket, 1, MINUTE);
    let store = store(10, WhenFull::Allow);
    flood(&store, &bucket, 0..10, START);
    for _ in 0..5 {
        assert!(store.one(charge(10, &bucket, 1), START).allowed);
        assert!(!store.one(charge(3, &bucket, 1), START).allowed);
    }
    assert_eq!(store.len(), 10);
    assert_eq!(store.pressed_out(), 5);
}

#[test]
fn who_read_the_clock_before_a_sweep_finds_what_was_there() {
    let limit = limit(fixed(Anchor::Clock), 1, MINUTE);
    let store = roomy();
    assert!(store.one(charge(1, &limit, 1), START).allowed);
    store.sweep(store.index(key(1)), START + MINUTE);
    let before = START + MINUTE - Span::from_nanos(1);
    assert!(!store.one(charge(1, &limit, 1), before).allowed);
}

#[test]
fn sweeping_changes_no_answer() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 3, MINUTE);
        let (swept, kept) = (roomy(), roomy());
        let mut random = 7_u64;
        for step in 0..2_000_u64 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let caller = (random >> 33) % 20;
            let now = START + Span::from_millis(step * 997 + (random >> 40) % 997);
            for shard in 0..swept.shards() {
                swept.sweep(shard, now);
            }
            let charge = Charge {
                refund: random >> 61 == 0,
                ..charge(caller, &limit, (random >> 50) % 3)
            };
            assert_eq!(
                swept.one(charge, now),
                kept.one(charge, now),
                "{:?} {step}",
                limit.algorithm
            );
        }
        let end = START + Span::from_secs(10_000);
        for shard in 0..swept.shards() {
            swept.sweep(shard, end);
        }
        assert!(swept.is_empty(), "{:?}", limit.algorithm);
        assert!(!kept.is_empty());
    }
}

#[test]
fn a_flood_of_200_000_addresses_leaves_a_steady_caller_exact() {
    // Room for all of them, and for a tenth.
    for max_keys in [1_000_000, 20_000] {
        let store = store(max_keys, WhenFull::EvictSoonest);
        let minute = limit(Algorithm::FixedWindow(Anchor::FirstHit), 100, MINUTE);
        let spread = |n: u64| Charge {
            key: CounterKey::from_bits(
                u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
            ),
            ..charge(0, &minute, 1)
        };
        let mut admitted = 0;
        // 10 seconds, 20 addresses per millisecond, and 20 requests of the caller per second.
        for milli in 0..10_000 {
            let now = START + Span::from_millis(milli);
            if milli % 50 == 0 {
                admitted += u64::from(store.one(charge(7, &minute, 1), now).allowed);
            }
            for n in 1..=20 {
                assert!(store.one(spread(milli * 20 + n), now).allowed);
            }
        }
        assert_eq!(admitted, 100, "{max_keys}");
        // Each shard has its part of the bound, rounded up.
        assert!(store.len() <= max_keys + store.shards());
    }
}
