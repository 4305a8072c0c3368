//! What goes over the wire.

use porteiro::{
    algorithm::Retry,
    model::{
        limit::{Algorithm, Anchor, Quota},
        time::{Clock, ManualClock, Span},
    },
    rules::Stacking,
    store::redis::{RedisOptions, RedisStore, Stat},
};

use crate::{
    limits::{PATIENT, limit, one, patient, per_hour, several, until_health},
    server::Server,
};

fn four() -> Vec<porteiro::rules::limit::Limit> {
    let quota = Quota::per(10, Span::from_secs(60)).unwrap();
    [
        Algorithm::FixedWindow(Anchor::Clock),
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::SlidingLog,
    ]
    .map(|algorithm| limit(algorithm, quota))
    .into()
}

#[tokio::test]
async fn a_request_with_four_limits_is_one_call_of_the_script() {
    let server = Server::start();
    let store = patient(&server.url());
    until_health(&store, true).await;
    let mut monitor = server.line();
    assert_eq!(monitor.raw("MONITOR"), "+OK");
    let limits = four();
    let charges: Vec<_> = limits
        .iter()
        .enumerate()
        .map(|(i, l)| (i as u128, l))
        .collect();
    for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
        store
            .decide("four", &several(&charges, stacking), PATIENT)
            .await
            .unwrap();
    }
    server.line().raw("ECHO end");
    let mut calls = 0;
    loop {
        let line = monitor.next();
        if line.contains("\"ECHO\" \"end\"") {
            break;
        }
        // What the script calls is shown as by `lua`; the probe uses another key.
        if !line.contains(" lua]") && line.contains("{porteiro:four}") {
            assert!(line.contains("\"EVALSHA\""), "{line}");
            calls += 1;
        }
    }
    assert_eq!(calls, 2);
}

#[tokio::test]
async fn every_key_has_an_expiry() {
    let server = Server::start();
    let store = patient(&server.url());
    let limits = four();
    for (key, limit) in limits.iter().enumerate() {
        for _ in 0..12 {
            let charges = one(key as u128, limit);
            store.decide("expiry", &charges, PATIENT).await.unwrap();
        }
    }
    let mut line = server.line();
    let keys = line.raw("KEYS *");
    assert!(keys.lines().count() >= limits.len(), "{keys}");
    for key in keys.lines() {
        let life = line.raw(&format!("PTTL {key}"));
        let millis: i64 = life.trim_start_matches(':').parse().unwrap();
        assert!(millis > 0 && millis <= 121_000, "{key} {life}");
    }
}

#[tokio::test]
async fn an_expiry_that_does_not_change_is_not_written_again() {
    let server = Server::start();
    let store = patient(&server.url());
    until_health(&store, true).await;
    let limit = per_hour(10);
    store.decide("ttl", &one(1, &limit), PATIENT).await.unwrap();
    let mut monitor = server.line();
    assert_eq!(monitor.raw("MONITOR"), "+OK");
    store.decide("ttl", &one(1, &limit), PATIENT).await.unwrap();
    server.line().raw("ECHO end");
    let mut writes = 0;
    loop {
        let line = monitor.next();
        if line.contains("\"ECHO\" \"end\"") {
            break;
        }
        if line.contains(" lua]") && line.contains("{porteiro:ttl}") && line.contains("\"SET\"") {
            assert!(line.contains("KEEPTTL"), "{line}");
            writes += 1;
        }
    }
    assert_eq!(writes, 1);
}

#[tokio::test]
async fn requests_that_come_together_share_messages() {
    let server = Server::start();
    let store = patient(&server.url());
    until_health(&store, true).await;
    let limit = per_hour(1_000_000);
    let before = store.snapshot();
    let mut waiting = tokio::task::JoinSet::new();
    let store = std::sync::Arc::new(store);
    for key in 0..500 {
        let (store, limit) = (std::sync::Arc::clone(&store), limit.clone());
        waiting.spawn(async move {
            store
                .decide("many", &one(key, &limit), PATIENT)
                .await
                .unwrap();
        });
    }
    waiting.join_all().await;
    let after = store.snapshot();
    let messages = after.count(Stat::Messages) - before.count(Stat::Messages);
    assert!(messages < 20, "{messages} messages for 500 requests");
    assert_eq!(after.waiting, 0);
}

#[tokio::test]
async fn a_refund_gives_back_what_was_taken_at_another_replica() {
    let server = Server::start();
    let (here, there) = (patient(&server.url()), patient(&server.url()));
    let limit = per_hour(1);
    let allowed = async |store: &RedisStore, refund: bool| {
        let mut charges = one(7, &limit);
        charges.list[0].refund = refund;
        store.decide("refund", &charges, PATIENT).await.unwrap()[0].allowed
    };
    let mut uncounted = limit.clone();
    uncounted.count_denied = false;
    assert!(allowed(&here, false).await);
    let refused = there.decide("refund", &one(7, &uncounted), PATIENT).await;
    assert!(!refused.unwrap()[0].allowed);
    assert!(allowed(&there, true).await);
    assert!(allowed(&here, false).await);
}

#[tokio::test]
async fn a_remembered_refusal_costs_no_message_until_the_window_ends() {
    let server = Server::start();
    let manual = ManualClock::at(Clock::machine().now().wall.floor(Span::from_micros(1)));
    let options = RedisOptions {
        deadline: PATIENT,
        silence: Span::from_secs(50 * 365 * 86_400),
        remembered_refusals: 2,
        test_clock: Some(manual.clock()),
        ..RedisOptions::parse(&server.url()).unwrap()
    };
    let store = RedisStore::connect(options, manual.clock());
    until_health(&store, true).await;
    let limit = per_hour(1);
    let ask = async |key: u128, refund: bool| {
        let mut charges = one(key, &limit);
        charges.list[0].refund = refund;
        store.decide("cache", &charges, PATIENT).await.unwrap()[0]
    };
    let remembered = || store.snapshot().count(Stat::Remembered);
    assert!(ask(1, false).await.allowed);
    let refused = ask(1, false).await;
    assert!(!refused.allowed);
    assert_eq!(remembered(), 0);
    manual.advance(Span::from_secs(10));
    for _ in 0..10 {
        let again = ask(1, false).await;
        assert!(!again.allowed && again.used_before == 2, "{again:?}");
        assert_eq!(again.reset, Span::from_secs(3_590));
        assert_eq!(again.retry, Retry::After(Span::from_secs(3_590)));
    }
    assert_eq!(remembered(), 10);
    // No more than two are remembered: the third key asks the store each time.
    for key in 2..4 {
        assert!(ask(key, false).await.allowed);
        assert!(!ask(key, false).await.allowed);
        assert!(!ask(key, false).await.allowed);
    }
    assert_eq!(remembered(), 11);
    // A refund is heard of: what was counted comes back, one by one.
    assert!(ask(1, true).await.allowed);
    assert!(!ask(1, false).await.allowed, "two were counted");
    assert_eq!(remembered(), 11);
    manual.advance(Span::from_secs(3_600));
    assert!(ask(2, false).await.allowed, "the window ended");
    assert_eq!(remembered(), 11);
}
