//! Limits whose units are taken ahead in blocks: never over, and what is not used comes back.

use std::{sync::Arc, time::Duration};

use porteiro::{
    algorithm::Retry,
    model::{
        key::CounterKey,
        limit::{Algorithm, Anchor, Quota},
        time::{Clock, ManualClock, Span, Timestamp},
    },
    rules::{
        Stacking,
        limit::{Limit, Slice},
    },
    store::{
        Charge, Charges,
        redis::{RedisOptions, RedisStore, Stat, StoreError},
    },
};
use tokio::task::JoinSet;

use crate::{
    limits::{PATIENT, limit, one, patient, several},
    server::Server,
};

/// Much longer than a test may take: the buckets of tests get nothing back meanwhile.
const LONG: Span = Span::from_secs(100 * 86_400);

fn sliced(algorithm: Algorithm, units: u64, period: Span, size: Option<u64>) -> Limit {
    Limit {
        count_denied: false,
        slice: Some(Slice {
            size,
            max_staleness: Span::from_millis(20),
        }),
        ..limit(algorithm, Quota::per(units, period).unwrap())
    }
}

fn held_long(limit: Limit) -> Limit {
    held(limit, Span::from_secs(3_600))
}

fn held(limit: Limit, max_staleness: Span) -> Limit {
    Limit {
        slice: limit.slice.map(|slice| Slice {
            max_staleness,
            ..slice
        }),
        ..limit
    }
}

fn three(server: &Server) -> Vec<Arc<RedisStore>> {
    let options = RedisOptions {
        deadline: PATIENT,
        silence: PATIENT,
        max_waiting: 10_000,
        ..RedisOptions::parse(&server.url()).unwrap()
    };
    let store = |_| Arc::new(RedisStore::connect(options.clone(), Clock::machine()));
    (0..3).map(store).collect()
}

/// How many of so many concurrent requests are admitted.
async fn admitted(stores: &[Arc<RedisStore>], key: u128, limit: &Limit, calls: usize) -> u64 {
    let mut tasks = JoinSet::new();
    let limit = Arc::new(limit.clone());
    for call in 0..calls {
        let store = Arc::clone(&stores[call % stores.len()]);
        let limit = Arc::clone(&limit);
        tasks.spawn(async move {
            let outcomes = store.decide("edge", &one(key, &limit), PATIENT).await;
            u64::from(outcomes.unwrap()[0].allowed)
        });
    }
    tasks.join_all().await.iter().sum()
}

async fn one_more(store: &RedisStore, key: u128, limit: &Limit) -> bool {
    let outcomes = store.decide("edge", &one(key, limit), PATIENT).await;
    outcomes.unwrap()[0].allowed
}

fn total(stores: &[Arc<RedisStore>], stat: Stat) -> u64 {
    stores
        .iter()
        .map(|store| store.snapshot().count(stat))
        .sum()
}

/// Rounds of calls at all stores: at no time more than the limit, in the end exactly the limit.
async fn all_is_handed_out_and_no_more(server: &Server, limit: &Limit, key: u128, calls: usize) {
    let stores = three(server);
    let units = limit.capacity();
    let mut all = 0;
    for round in 0..500 {
        let now = admitted(&stores, key, limit, calls).await;
        all += now;
        assert!(all <= units, "{all} of {units} after round {round}");
        if all == units {
            break;
        }
        if now == 0 {
            // What others hold comes back.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(all, units);
    assert!(total(&stores, Stat::Sliced) > 0, "nobody used a block");
    assert_eq!(total(&stores, Stat::SliceUnitsLost), 0);
    for store in &stores {
        assert!(!one_more(store, key, limit).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_hand_out_exactly_the_limit() {
    let server = Server::start();
    let mut key = 0;
    for algorithm in [
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::FixedWindow(Anchor::Clock),
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ] {
        for (units, calls) in [(50, 400), (1_000, 400), (1_000, 4_000)] {
            for size in [None, Some(8), Some(1_000)] {
                key += 1;
                let limit = sliced(algorithm.clone(), units, LONG, size);
                // A few at first, so that there are blocks when the many come.
                all_is_handed_out_and_no_more(&server, &limit, key, 12).await;
                key += 1;
                many_at_once(&server, &limit, key, calls).await;
            }
        }
    }
}

/// Many at once after a few: never more than the limit, short by no more than what is held.
async fn many_at_once(server: &Server, limit: &Limit, key: u128, calls: usize) {
    let stores = three(server);
    let units = limit.capacity();
    let mut all = 0;
    for _ in 0..4 {
        all += admitted(&stores, key, limit, 6).await;
    }
    all += admitted(&stores, key, limit, calls).await;
    assert!(all <= units, "{all} of {units}");
    for store in &stores {
        store.return_slices().await;
    }
    // Nobody takes blocks any more: one by one, and some are still on their way back.
    for _ in 0..2_000 {
        if one_more(&stores[0], key, limit).await {
            all += 1;
        } else if all == units {
            return;
        } else {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    panic!("{all} of {units}");
}

#[tokio::test]
async fn a_block_is_not_spent_in_the_next_window_nor_given_back_into_it() {
    let server = Server::start();
    let clock = ManualClock::at(start());
    let store = by_clocks(&server, &clock, &clock);
    let minute = Algorithm::FixedWindow(Anchor::Clock);
    let limit = held_long(sliced(minute, 100, Span::from_secs(60), Some(20)));
    for _ in 0..2 {
        assert!(one_more(&store, 1, &limit).await);
    }
    // 1, then 1 and a block of 19: 79 are left besides.
    let sliced_before = store.snapshot().count(Stat::Sliced);
    assert!(one_more(&store, 1, &limit).await);
    assert_eq!(store.snapshot().count(Stat::Sliced), sliced_before + 1);
    clock.advance(Span::from_secs(60));
    // The next minute: the block is void, the store says what is left.
    let outcomes = store.decide("edge", &one(1, &limit), PATIENT).await;
    let outcome = outcomes.unwrap()[0];
    assert_eq!((outcome.allowed, outcome.used_before), (true, 0));
    assert_eq!(store.snapshot().count(Stat::Sliced), sliced_before + 1);
    // And what is left of it does not free anything there.
    store.return_slices().await;
    let peek = several(&[(1, &limit)], Stacking::Independent);
    let outcomes = store.look("edge", &peek, PATIENT).await.unwrap();
    assert_eq!(outcomes[0].remaining, 99);
}

/// A return that leaves in time and arrives after the window's end.
#[tokio::test]
async fn a_return_that_comes_late_frees_nothing() {
    let server = Server::start();
    let (script, ours) = (ManualClock::at(start()), ManualClock::at(start()));
    let store = by_clocks(&server, &script, &ours);
    let minute = Algorithm::FixedWindow(Anchor::Clock);
    let limit = held_long(sliced(minute, 100, Span::from_secs(60), Some(20)));
    for _ in 0..2 {
        assert!(one_more(&store, 1, &limit).await);
    }
    script.advance(Span::from_secs(60));
    // Others count in the new window, which we have not noticed yet.
    let plain = Limit {
        slice: None,
        ..limit.clone()
    };
    for _ in 0..30 {
        assert!(one_more(&store, 1, &plain).await);
    }
    store.return_slices().await;
    assert_eq!(store.snapshot().count(Stat::SliceUnitsLost), 19);
    let outcomes = store.look("edge", &one(1, &plain), PATIENT).await.unwrap();
    assert_eq!(outcomes[0].remaining, 70);
}

fn start() -> Timestamp {
    Clock::machine().now().wall.floor(Span::from_secs(60))
}

/// A store with a clock of its own, and one that the script goes by.
fn by_clocks(server: &Server, script: &ManualClock, ours: &ManualClock) -> RedisStore {
    let options = RedisOptions {
        deadline: PATIENT,
        // The clocks jump, and no message may be void for that.
        silence: LONG,
        test_clock: Some(script.clock()),
        ..RedisOptions::parse(&server.url()).unwrap()
    };
    RedisStore::connect(options, ours.clock())
}

#[tokio::test]
async fn what_is_not_used_comes_back_by_itself() {
    let server = Server::start();
    let (store, other) = (patient(&server.url()), patient(&server.url()));
    let limit = sliced(Algorithm::TokenBucket, 100, LONG, Some(40));
    for _ in 0..2 {
        assert!(one_more(&store, 1, &limit).await);
    }
    let plain = Limit {
        slice: None,
        ..limit.clone()
    };
    let remaining = async || {
        let outcomes = other.look("edge", &one(1, &plain), PATIENT).await;
        outcomes.unwrap()[0].remaining
    };
    for _ in 0..500 {
        if remaining().await == 98 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} are left", remaining().await);
}

/// A block that Redis grants when its request has been answered without it.
#[tokio::test]
async fn a_block_that_comes_too_late_goes_back() {
    let server = Server::start();
    for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
        let options = RedisOptions {
            deadline: Span::from_millis(50),
            silence: PATIENT,
            ..RedisOptions::parse(&server.url()).unwrap()
        };
        let store = RedisStore::connect(options, Clock::machine());
        let other = patient(&server.url());
        let key = 1 + stacking as u128;
        let window = Algorithm::FixedWindow(Anchor::FirstHit);
        let limit = held_long(sliced(window, 100, LONG, Some(40)));
        let ask = several(&[(key, &limit)], stacking);
        crate::limits::until_answered(&store, "edge", &ask).await;
        server.signal("-STOP");
        let late = store.decide("edge", &ask, PATIENT).await;
        assert_eq!(late, Err(StoreError::Timeout));
        server.signal("-CONT");
        for _ in 0..500 {
            if store.snapshot().count(Stat::SliceUnitsReturned) > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(store.snapshot().count(Stat::SliceUnitsReturned), 39);
        // The request itself was counted: nobody knew that it was given up.
        let plain = Limit {
            slice: None,
            ..limit.clone()
        };
        let mut rest = 0;
        while one_more(&other, key, &plain).await {
            rest += 1;
        }
        assert_eq!(rest, 98);
    }
}

#[tokio::test]
async fn peeks_refunds_resets_and_refusals() {
    let server = Server::start();
    let store = patient(&server.url());
    let limit = held_long(sliced(
        Algorithm::FixedWindow(Anchor::FirstHit),
        20,
        LONG,
        Some(10),
    ));
    let charge = |cost, refund| {
        let mut charges = one(1, &limit);
        charges.list[0] = Charge {
            cost,
            refund,
            ..charges.list[0]
        };
        charges
    };
    let ask = async |charges: Charges<'_>| {
        let outcomes = store.decide("edge", &charges, PATIENT).await;
        outcomes.unwrap()[0]
    };
    let _ = ask(charge(1, false)).await;
    let _ = ask(charge(1, false)).await;
    // Of 18 that are left, 9 are a block: a peek counts them as left.
    assert_eq!(ask(charge(0, false)).await.remaining, 18);
    // A refund goes to Redis and the block stays.
    assert_eq!(ask(charge(2, true)).await.remaining, 11);
    assert_eq!(ask(charge(0, false)).await.remaining, 20);
    // More than the block, and more than Redis has: Redis says when.
    let refused = ask(charge(15, false)).await;
    assert!(!refused.allowed);
    let Retry::After(wait) = refused.retry else {
        panic!("{refused:?}");
    };
    assert!(
        wait > LONG.saturating_sub(Span::from_secs(60)) && wait <= LONG,
        "{wait:?}"
    );
    // A reset forgets the block, too: all of the limit is there, once.
    store
        .reset("edge", false, &[CounterKey::from_bits(1)])
        .await
        .unwrap();
    let mut all = 0;
    while one_more(&store, 1, &limit).await {
        all += 1;
    }
    assert_eq!(all, 20);
}

#[tokio::test]
async fn slices_go_on_while_redis_is_away_and_no_longer_than_their_units() {
    let server = Server::start();
    let store = patient(&server.url());
    let limit = held_long(sliced(
        Algorithm::FixedWindow(Anchor::FirstHit),
        1_000,
        LONG,
        Some(10),
    ));
    for _ in 0..2 {
        assert!(one_more(&store, 1, &limit).await);
    }
    drop(server);
    for _ in 0..9 {
        assert!(one_more(&store, 1, &limit).await);
    }
    let outcomes = store.decide("edge", &one(1, &limit), PATIENT).await;
    assert!(outcomes.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_or_nothing_with_two_sliced_limits_is_exact() {
    let server = Server::start();
    let stores = three(&server);
    // On a slow machine two rounds may be far apart.
    let a_while = Span::from_millis(100);
    let window = sliced(Algorithm::FixedWindow(Anchor::FirstHit), 60, LONG, Some(8));
    let window = held(window, a_while);
    let bucket = held(sliced(Algorithm::TokenBucket, 300, LONG, Some(8)), a_while);
    let mut all = 0;
    for _ in 0..200 {
        let mut tasks = JoinSet::new();
        for call in 0..12 {
            let store = Arc::clone(&stores[call % 3]);
            let (window, bucket) = (window.clone(), bucket.clone());
            tasks.spawn(async move {
                let charges = several(&[(1, &window), (2, &bucket)], Stacking::AllOrNothing);
                let outcomes = store.decide("edge", &charges, PATIENT).await.unwrap();
                u64::from(!charges.are_refused(&outcomes))
            });
        }
        all += tasks.join_all().await.iter().sum::<u64>();
        assert!(all <= 60, "{all}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(all, 60);
    assert!(total(&stores, Stat::Sliced) > 0);
    for store in &stores {
        store.return_slices().await;
    }
    // Of the other one exactly as much is gone.
    let plain = Limit {
        slice: None,
        ..bucket.clone()
    };
    let outcomes = stores[0].look("edge", &one(2, &plain), PATIENT).await;
    assert_eq!(outcomes.unwrap()[0].remaining, 240);
}
