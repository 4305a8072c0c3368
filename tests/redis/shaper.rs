//! The shaper over Redis: who is held, who is refused, and what becomes of the slots.

use std::{collections::BTreeMap, time::Duration};

use porteiro::{
    model::time::{Clock, Span, Timestamp},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
    },
};
use serde_json::json;

use crate::{
    server::Server,
    support::{REQUEST, Service, message},
};

/// One a second or a minute, in a queue of five.
const RULES: &str = "
domain: edge
descriptors:
- key: held
  limits: [{rate: 1/1s, burst: 5, algorithm: leaky_queue, hold: true}]
- key: slow
  limits: [{rate: 1/60s, burst: 5, algorithm: leaky_queue, hold: true}]
- key: refused
  limits: [{rate: 1/1s, burst: 5, algorithm: leaky_queue}]
";

/// Half of it reaches to the end of the queue.
const PATIENT: Span = Span::from_secs(600);

fn start(server: &Server) -> Service {
    let files = BTreeMap::from([("edge.yaml".to_owned(), RULES.to_owned())]);
    let now = Timestamp::from_secs(1_000_000);
    Service::at(server, &files, &BTreeMap::new(), now)
}

fn request(key: &str, hits: u64) -> RateLimitRequest {
    let entries = json!([{"key": key, "value": "x"}]);
    let descriptor = json!({"entries": entries, "hits_addend": hits.to_string()});
    message(
        REQUEST,
        &json!({"domain": "edge", "descriptors": [descriptor]}),
    )
}

async fn ask(service: &Service, key: &str, timeout: Span) -> RateLimitResponse {
    let asked = request(key, 1);
    let now = service.clock.now();
    service
        .rls
        .answer(&asked, now, Some(timeout))
        .await
        .unwrap()
}

fn passes(answer: &RateLimitResponse) -> bool {
    answer.overall_code() == Code::Ok
}

/// Slots that are taken. A probe is told, not held.
async fn taken(service: &Service, key: &str) -> u32 {
    let (probe, now) = (request(key, 0), service.clock.now());
    let answer = service.rls.answer(&probe, now, Some(PATIENT)).await;
    5 - answer.unwrap().statuses[0].limit_remaining
}

#[tokio::test]
async fn a_slot_that_is_too_far_is_refused_and_not_taken() {
    let server = Server::start();
    let service = start(&server);
    let hurried = Span::from_millis(1_900);
    assert!(passes(&ask(&service, "held", hurried).await), "now");
    // In a second; half of the timeout is less.
    assert!(!passes(&ask(&service, "held", hurried).await));
    assert_eq!(taken(&service, "held").await, 1);
    assert!(passes(&ask(&service, "refused", hurried).await), "now");
    assert!(!passes(
        &ask(&service, "refused", Span::from_secs(10)).await
    ));
    service.clock.advance(Span::from_secs(1));
    let answer = ask(&service, "refused", hurried).await;
    assert!(passes(&answer));
    assert_eq!(answer.statuses[0].limit_remaining, 4);
}

#[tokio::test]
async fn who_goes_away_while_it_is_held_gives_its_slot_back() {
    let server = Server::start();
    let service = start(&server);
    assert!(passes(&ask(&service, "slow", PATIENT).await), "now");
    let until = async |count: u32| {
        for _ in 0..2_000 {
            if taken(&service, "slow").await == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("not {count} slots");
    };
    tokio::select! {
        // First, so that it has seen its answer when the slot is seen.
        biased;
        _ = ask(&service, "slow", PATIENT) => panic!("it should be held for a minute"),
        () = until(2) => {}
    }
    until(1).await;
}

#[tokio::test]
async fn who_stays_is_held_until_its_slot() {
    let server = Server::start();
    let service = start(&server);
    assert!(passes(&ask(&service, "held", PATIENT).await), "now");
    let clock = Clock::machine();
    let before = clock.now().steady;
    assert!(passes(&ask(&service, "held", PATIENT).await), "in a second");
    let held = before.until(clock.now().steady);
    assert!(held >= Span::from_secs(1), "{held:?}");
}
