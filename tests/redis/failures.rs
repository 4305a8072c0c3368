//! Redis is slow, away, full, refuses us, or is another than it was.

use std::{sync::Arc, time::Duration};

use porteiro::{
    model::time::{Clock, Span},
    rules::limit::Limit,
    store::redis::{RedisOptions, RedisStore, Stat, StoreError},
};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    limits::{PATIENT, one, patient, per_hour, until_health},
    server::{Server, free_port},
};

const DEADLINE: Span = Span::from_millis(5);
/// What a call may wait beyond its deadline.
const BEYOND: Span = Span::from_millis(5);

async fn ask(store: &RedisStore, key: u128, limit: &Limit) -> Result<bool, StoreError> {
    let outcomes = store.decide("edge", &one(key, limit), PATIENT).await?;
    Ok(outcomes[0].allowed)
}

/// Asks until there is an answer.
async fn until_answered(store: &RedisStore, key: u128, limit: &Limit) -> Span {
    let clock = Clock::machine();
    let start = clock.now().steady;
    loop {
        if ask(store, key, limit).await.is_ok() {
            return clock.now().steady.since(start);
        }
        assert!(clock.now().steady.since(start) < Span::from_secs(20));
        sleep(Duration::from_millis(5)).await;
    }
}

/// Longest wait of many calls while the machine does other things too. What a bare timer is late
/// by is the machine's fault and taken off.
async fn longest_wait(store: &Arc<RedisStore>, limit: &Limit, calls: usize) -> Span {
    let clock = Clock::machine();
    let timer = clock.clone();
    let control = tokio::spawn(async move {
        let mut late = Span::ZERO;
        for _ in 0..150 {
            let start = timer.now().steady;
            sleep(Duration::from_millis(2)).await;
            // A timer has a resolution of a millisecond.
            let over = timer
                .now()
                .steady
                .since(start)
                .saturating_sub(Span::from_millis(4));
            late = late.max(over);
        }
        late
    });
    let mut longest = Span::ZERO;
    let mut waiting = JoinSet::new();
    for call in 0..calls {
        let (store, limit, clock) = (Arc::clone(store), limit.clone(), clock.clone());
        waiting.spawn(async move {
            let start = clock.now().steady;
            let _ = ask(&store, call as u128, &limit).await;
            clock.now().steady.since(start)
        });
        if call % 20 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    for wait in waiting.join_all().await {
        longest = longest.max(wait);
    }
    longest.saturating_sub(control.await.unwrap())
}

fn impatient(url: &str) -> RedisStore {
    let options = RedisOptions::parse(url).unwrap();
    assert_eq!(options.deadline, DEADLINE);
    RedisStore::connect(options, Clock::machine())
}

#[tokio::test]
async fn a_start_does_not_need_redis() {
    let port = free_port();
    let store = impatient(&format!("redis://127.0.0.1:{port}"));
    let limit = per_hour(10);
    sleep(Duration::from_millis(50)).await;
    assert!(!store.health().is_up);
    assert_eq!(ask(&store, 1, &limit).await, Err(StoreError::Unreachable));
    let server = Server::on(port, &[]);
    until_health(&store, true).await;
    until_answered(&store, 1, &limit).await;
    drop(server);
    until_health(&store, false).await;
}

#[tokio::test]
async fn nobody_waits_for_a_redis_that_hangs() {
    let server = Server::start();
    let store = Arc::new(impatient(&server.url()));
    let limit = per_hour(1_000_000);
    until_health(&store, true).await;
    until_answered(&store, 1, &limit).await;
    server.signal("-STOP");
    let longest = longest_wait(&store, &limit, 2_000).await;
    assert!(longest <= DEADLINE.saturating_add(BEYOND), "{longest:?}");
    let snapshot = store.snapshot();
    assert!(snapshot.breaker_open, "{snapshot:?}");
    assert!(
        snapshot.errors(StoreError::Unreachable) > 1_000,
        "{snapshot:?}"
    );
    assert!(snapshot.waiting <= 1024);
    assert!(!store.health().is_up);
    server.signal("-CONT");
    let back = until_answered(&store, 1, &limit).await;
    assert!(back <= Span::from_secs(2), "{back:?}");
}

#[tokio::test]
async fn what_hung_too_long_is_not_counted_afterwards() {
    let server = Server::start();
    let options = RedisOptions {
        silence: Span::from_millis(200),
        ..RedisOptions::parse(&server.url()).unwrap()
    };
    let store = RedisStore::connect(options, Clock::machine());
    let limit = per_hour(1_000);
    until_health(&store, true).await;
    until_answered(&store, 9, &limit).await;
    let used = async |store: &RedisStore| {
        let mut look = one(77, &limit);
        look.list[0].cost = 0;
        let outcomes = store.decide("edge", &look, PATIENT).await.unwrap();
        1_000 - outcomes[0].remaining
    };
    server.signal("-STOP");
    for _ in 0..4 {
        assert!(ask(&store, 77, &limit).await.is_err());
    }
    // Longer than the connection is waited for and the grace together.
    sleep(Duration::from_millis(1_500)).await;
    server.signal("-CONT");
    until_answered(&store, 9, &limit).await;
    assert_eq!(used(&patient(&server.url())).await, 0);
}

#[tokio::test]
async fn the_number_that_waits_is_bounded() {
    let server = Server::start();
    let options = RedisOptions {
        deadline: Span::from_millis(300),
        max_waiting: 10,
        ..RedisOptions::parse(&server.url()).unwrap()
    };
    let store = Arc::new(RedisStore::connect(options, Clock::machine()));
    let limit = per_hour(1_000);
    until_health(&store, true).await;
    until_answered(&store, 1, &limit).await;
    server.signal("-STOP");
    let mut waiting = JoinSet::new();
    for key in 0..100 {
        let (store, limit) = (Arc::clone(&store), limit.clone());
        waiting.spawn(async move { ask(&store, key, &limit).await });
    }
    let answers = waiting.join_all().await;
    let timeouts = answers
        .iter()
        .filter(|answer| **answer == Err(StoreError::Timeout));
    assert!(timeouts.count() <= 10);
    assert!(store.snapshot().waiting <= 10);
    server.signal("-CONT");
}

#[tokio::test]
async fn a_killed_redis_is_missed_and_found_again() {
    let mut server = Server::start();
    let store = impatient(&server.url());
    let limit = per_hour(10);
    until_health(&store, true).await;
    until_answered(&store, 1, &limit).await;
    server.kill();
    for _ in 0..20 {
        assert!(ask(&store, 1, &limit).await.is_err());
    }
    until_health(&store, false).await;
    server.restart();
    let back = until_answered(&store, 1, &limit).await;
    assert!(back <= Span::from_secs(2), "{back:?}");
}

#[tokio::test]
async fn a_flushed_script_is_sent_again() {
    let server = Server::start();
    let store = patient(&server.url());
    let limit = per_hour(10);
    until_health(&store, true).await;
    let before = store.snapshot().count(Stat::ScriptsSent);
    assert_eq!(server.line().raw("SCRIPT FLUSH"), "+OK");
    assert_eq!(ask(&store, 1, &limit).await, Ok(true));
    assert_eq!(store.snapshot().count(Stat::ScriptsSent), before + 1);
    assert_eq!(ask(&store, 1, &limit).await, Ok(true));
    assert_eq!(store.snapshot().count(Stat::ScriptsSent), before + 1);
}

#[tokio::test]
async fn a_killed_connection_is_made_anew_before_anybody_needs_it() {
    let server = Server::start();
    let store = patient(&server.url());
    let limit = per_hour(10);
    until_health(&store, true).await;
    let before = store.snapshot().count(Stat::Connections);
    server.line().raw("CLIENT KILL TYPE normal");
    for _ in 0..1_000 {
        if store.snapshot().count(Stat::Connections) > before {
            break;
        }
        sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(ask(&store, 1, &limit).await, Ok(true));
}

#[tokio::test]
async fn a_wrong_password_is_told_without_showing_it_and_may_be_changed() {
    let server = Server::with(&["--requirepass", "right-one"]);
    let file = std::env::temp_dir().join(format!("porteiro-password-{}", std::process::id()));
    std::fs::write(&file, "wrong-one\n").unwrap();
    let mut options = RedisOptions::parse(&server.url()).unwrap();
    options.login.password_file = Some(file.clone());
    let store = RedisStore::connect(options, Clock::machine());
    let limit = per_hour(10);
    for _ in 0..1_000 {
        if store
            .health()
            .error
            .is_some_and(|error| error.contains("credentials"))
        {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    let health = store.health();
    let error = health.error.unwrap();
    assert!(!health.is_up && error.contains("credentials"), "{error}");
    assert!(!error.contains("wrong-one"), "{error}");
    assert!(ask(&store, 1, &limit).await.is_err());
    std::fs::write(&file, "right-one\n").unwrap();
    until_health(&store, true).await;
    until_answered(&store, 1, &limit).await;
    let _ = std::fs::remove_file(file);
}

#[tokio::test]
async fn a_full_memory_is_an_answer() {
    let server = Server::start();
    let store = patient(&server.url());
    let limit = per_hour(10);
    until_health(&store, true).await;
    assert_eq!(ask(&store, 1, &limit).await, Ok(true));
    server.line().raw("CONFIG SET maxmemory 1");
    assert_eq!(ask(&store, 2, &limit).await, Err(StoreError::Full));
    // To look writes nothing.
    let mut look = one(1, &limit);
    look.list[0].cost = 0;
    let outcomes = store.decide("edge", &look, PATIENT).await.unwrap();
    assert_eq!(outcomes[0].remaining, 9);
    server.line().raw("CONFIG SET maxmemory 0");
    until_answered(&store, 2, &limit).await;
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_at_once() {
    let server = Server::start();
    let store = patient(&server.url());
    let limit = per_hour(10);
    until_health(&store, true).await;
    assert_eq!(ask(&store, 1, &limit).await, Ok(true));
    let before = store.snapshot().count(Stat::Connections);
    let nowhere = free_port();
    server.line().raw(&format!("REPLICAOF 127.0.0.1 {nowhere}"));
    assert_eq!(ask(&store, 1, &limit).await, Err(StoreError::ReadOnly));
    for _ in 0..1_000 {
        if store.snapshot().count(Stat::Connections) > before {
            break;
        }
        sleep(Duration::from_millis(2)).await;
    }
    assert!(store.snapshot().count(Stat::Connections) > before);
    server.line().raw("REPLICAOF NO ONE");
    until_answered(&store, 1, &limit).await;
}
