//! A domain whose counters lie in many slots of a cluster.

use std::{collections::BTreeMap, sync::Arc};

use porteiro::{
    algorithm::Retry,
    model::{key::CounterKey, time::Span},
    rules::{Stacking, limit::Limit},
    store::{
        Charges, Outcomes,
        redis::{RedisStore, StoreError},
    },
};
use tokio::task::JoinSet;

use crate::{
    cluster::Cluster,
    exact::{LIMIT, exact_limits},
    limits::{PATIENT, per_hour, several},
};

const CALLS: usize = 400;

/// Charges on counters that lie in these parts of the domain.
fn spread<'l>(counters: &[(u128, &'l Limit)]) -> Charges<'l> {
    let mut charges = several(counters, Stacking::Independent);
    for (charge, (part, _)) in charges.list.iter_mut().zip(counters) {
        charge.key = CounterKey::from_bits(charge.key.bits() | *part);
    }
    charges.terms.spread = true;
    charges
}

/// Asks until every slot has been answered once: the cluster is known by then.
async fn warm(store: &RedisStore) {
    let limit = per_hour(1_000_000);
    for part in 0..64 {
        let charges = spread(&[(part, &limit)]);
        crate::limits::until_answered(store, "warm", &charges).await;
    }
}

async fn admitted(stores: &[Arc<RedisStore>], part: u128, limit: &Limit) -> u64 {
    let mut calls = JoinSet::new();
    let limit = Arc::new(limit.clone());
    for call in 0..CALLS {
        let store = Arc::clone(&stores[call % stores.len()]);
        let limit = Arc::clone(&limit);
        calls.spawn(async move {
            let charges = spread(&[(part, &limit)]);
            let outcomes = store.decide("edge", &charges, PATIENT).await;
            outcomes.unwrap()[0].allowed
        });
    }
    let answers = calls.join_all().await;
    answers.iter().map(|allowed| u64::from(*allowed)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spread_domain_lies_on_every_primary_and_admits_exactly_the_limit() {
    let cluster = Cluster::start();
    let stores: Vec<_> = (0..2).map(|_| Arc::new(cluster.store(PATIENT))).collect();
    for store in &stores {
        warm(store).await;
    }
    // The windows of the clock have a test of their own that minds the minute's end.
    for (kind, limit) in exact_limits().iter().enumerate().skip(1) {
        for part in 0..4 {
            // Evenly over the parts.
            let part = (7 * kind as u128 + 17 * part) % 64 + 64 * kind as u128;
            let admitted = admitted(&stores, part, limit).await;
            assert_eq!(admitted, LIMIT, "{:?}, part {part}", limit.algorithm);
        }
    }
    for primary in 0..3 {
        let keys = cluster.nodes[primary].line().raw("KEYS {porteiro:edge:*");
        assert!(keys.lines().count() > 2, "primary {primary}: {keys}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_several_slots_says_what_one_in_one_slot_says() {
    let cluster = Cluster::start();
    let store = cluster.store(PATIENT);
    warm(&store).await;
    let (two, nine, one) = (per_hour(2), per_hour(9), per_hour(1));
    // The same counter twice, two in one part, others elsewhere.
    let counters = [
        (3, &nine),
        (40, &two),
        (3, &nine),
        (64 + 3, &nine),
        (21, &one),
    ];
    let told = |outcomes: &Outcomes| -> Vec<_> {
        let short = |retry: Retry| match retry {
            Retry::After(wait) => wait.is_zero(),
            Retry::Never => false,
        };
        let each = outcomes.iter();
        each.map(|o| (o.allowed, o.used_before, o.remaining, short(o.retry)))
            .collect()
    };
    for round in 0..6 {
        let apart = spread(&counters);
        let mut together = apart.clone();
        together.terms.spread = false;
        let apart = store.decide("apart", &apart, PATIENT).await.unwrap();
        let together = store.decide("together", &together, PATIENT).await.unwrap();
        assert_eq!(told(&apart), told(&together), "round {round}");
        let looked = store.look("apart", &spread(&counters), PATIENT).await;
        let want = store
            .look("together", &several_of(&counters), PATIENT)
            .await;
        assert_eq!(
            told(&looked.unwrap()),
            told(&want.unwrap()),
            "round {round}"
        );
    }
}

fn several_of<'l>(counters: &[(u128, &'l Limit)]) -> Charges<'l> {
    let mut together = spread(counters);
    together.terms.spread = false;
    together
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_does_not_answer_fails_the_requests_that_touch_it_and_no_other() {
    let cluster = Cluster::start();
    let store = cluster.store(Span::from_millis(100));
    warm(&store).await;
    let limit = per_hour(1_000);
    // A part of each primary, told by the names of their counters.
    let mut parts = BTreeMap::new();
    for part in 0..64 {
        let before = sizes(&cluster);
        crate::limits::until_answered(&store, "edge", &spread(&[(part, &limit)])).await;
        let after = sizes(&cluster);
        let grown = (0..3).find(|node| after[*node] > before[*node]);
        parts.entry(grown.unwrap()).or_insert(part);
    }
    let (hung, lively) = (parts[&0], parts[&1]);
    cluster.nodes[0].signal("-STOP");
    let both = spread(&[(lively, &limit), (hung, &limit)]);
    for _ in 0..3 {
        let failed = store.decide("edge", &both, PATIENT).await;
        assert_eq!(failed, Err(StoreError::Timeout));
    }
    for asked in 1..=20 {
        let answered = store
            .decide("edge", &spread(&[(lively, &limit)]), PATIENT)
            .await;
        // What the others of the failed requests counted stays counted.
        assert_eq!(answered.unwrap()[0].used_before, 3 + asked);
    }
    cluster.nodes[0].signal("-CONT");
}

/// Keys of each primary.
fn sizes(cluster: &Cluster) -> Vec<u64> {
    let size = |node: usize| {
        let size = cluster.nodes[node].line().raw("DBSIZE");
        size.trim_start_matches(':').parse().unwrap()
    };
    (0..3).map(size).collect()
}
