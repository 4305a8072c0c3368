//! Several replicas, one truth.

use std::sync::Arc;

use porteiro::{
    model::{
        limit::{Algorithm, Anchor, CalendarUnit, Quota},
        time::{Clock, ManualClock, Span},
    },
    rules::limit::Limit,
    store::redis::{RedisOptions, RedisStore},
};
use tokio::task::JoinSet;

use crate::{
    limits::{PATIENT, calendar, limit, one, patient},
    server::Server,
};

pub(crate) const LIMIT: u64 = 50;
const CALLS: usize = 400;
const ROUNDS: u128 = 10;

/// Every algorithm that promises exactly its limit to those who come at once. Buckets refill while
/// a slow machine runs the test, so theirs is per hour.
pub(crate) fn exact_limits() -> Vec<Limit> {
    let minute = Quota::per(LIMIT, Span::from_secs(60)).unwrap();
    let hour = Quota::per(LIMIT, Span::from_secs(3_600)).unwrap();
    let day = Quota::per(LIMIT, Span::from_secs(86_400)).unwrap();
    vec![
        limit(Algorithm::FixedWindow(Anchor::Clock), minute),
        limit(Algorithm::FixedWindow(Anchor::FirstHit), minute),
        limit(Algorithm::FixedWindow(Anchor::LastHit), minute),
        limit(calendar(CalendarUnit::Month), day),
        limit(Algorithm::SlidingLog, minute),
        limit(Algorithm::SlidingWindow, minute),
        limit(Algorithm::TokenBucket, hour),
        limit(Algorithm::LeakyBucket, hour),
        limit(Algorithm::LeakyQueue, hour),
    ]
}

pub(crate) async fn admitted(stores: &[Arc<RedisStore>], key: u128, limit: &Limit) -> u64 {
    let mut calls = JoinSet::new();
    let limit = Arc::new(limit.clone());
    for call in 0..CALLS {
        let store = Arc::clone(&stores[call % stores.len()]);
        let limit = Arc::clone(&limit);
        calls.spawn(async move {
            let outcomes = store.decide("edge", &one(key, &limit), PATIENT).await;
            outcomes.unwrap()[0].allowed
        });
    }
    let answers = calls.join_all().await;
    answers.iter().map(|allowed| u64::from(*allowed)).sum()
}

/// Minute of the server's clock, in which the windows of the clock lie.
pub(crate) fn minute(server: &Server) -> u64 {
    let time = server.line().raw("TIME");
    let seconds: u64 = time.lines().next().unwrap().parse().unwrap();
    seconds / 60
}

async fn exactly(server: &Server, stores: &[Arc<RedisStore>], domain: u128) {
    for (kind, limit) in exact_limits().iter().enumerate() {
        let mut round = 0;
        let mut key = domain << 32 | (kind as u128) << 16;
        while round < ROUNDS {
            key += 1;
            let before = minute(server);
            let admitted = admitted(stores, key, limit).await;
            if minute(server) == before {
                assert_eq!(admitted, LIMIT, "{:?}, round {round}", limit.algorithm);
                round += 1;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_admit_exactly_the_limit() {
    let server = Server::start();
    let stores: Vec<_> = (0..2).map(|_| Arc::new(patient(&server.url()))).collect();
    exactly(&server, &stores, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_replicas_admit_exactly_the_limit() {
    let server = Server::start();
    let stores: Vec<_> = (0..5).map(|_| Arc::new(patient(&server.url()))).collect();
    exactly(&server, &stores, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_whose_clocks_differ_admit_exactly_the_limit() {
    let server = Server::start();
    let now = Clock::machine().now().wall;
    let stores: Vec<_> = [0, 20, 40]
        .into_iter()
        .map(|seconds| {
            let clock = ManualClock::at(now - Span::from_secs(20) + Span::from_secs(seconds));
            let options = RedisOptions {
                deadline: PATIENT,
                silence: PATIENT,
                ..RedisOptions::parse(&server.url()).unwrap()
            };
            Arc::new(RedisStore::connect(options, clock.clock()))
        })
        .collect();
    exactly(&server, &stores, 3).await;
}

/// Shows that the test above can fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_first_and_counting_afterwards_is_not_exact() {
    let server = Server::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut over = false;
    for round in 0..ROUNDS {
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let client = client.clone();
            calls.spawn(async move {
                let mut line = client.get_multiplexed_async_connection().await.unwrap();
                let key = format!("naive:{round}");
                let get = redis::cmd("GET").arg(&key).query_async(&mut line).await;
                let used: Option<u64> = get.unwrap();
                if used.unwrap_or(0) >= LIMIT {
                    return false;
                }
                let incr = redis::cmd("INCR").arg(&key).query_async(&mut line).await;
                let _: u64 = incr.unwrap();
                true
            });
        }
        let answers = calls.join_all().await;
        over |= answers.iter().filter(|allowed| **allowed).count() as u64 > LIMIT;
    }
    assert!(over);
}
