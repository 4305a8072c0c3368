//! Rate units that are given back with the lease they were taken with.

use std::pin::pin;

use porteiro::{
    model::time::Span,
    proto::porteiro::v1::{
        AcquireRequest, Item, LeaseEnd, PeekRequest, acquire_response::Decision,
        lease_end::Outcome, limiter_service_server::LimiterService,
    },
};
use tonic::Request;

use super::desk::{self, Desk, descriptor};
use crate::support;

const RULES: &str = "
domain: d
descriptors:
- key: never
  concurrency: {limit: 1, lease_ttl: 10s}
- key: dropped
  concurrency: {limit: 1, lease_ttl: 10s, refund_on: dropped}
- key: expired
  concurrency: {limit: 1, lease_ttl: 10s, refund_on: [expired]}
- key: tenant
  limits: [{rate: 5/minute}]
- key: bucket
  limits: [{rate: 60/minute, algorithm: token_bucket}]
";

fn desk() -> Desk {
    Desk::over(RULES)
}

impl Desk {
    fn take(&self, keys: &[&str]) -> String {
        let answer = self.acquire(request(keys));
        assert_eq!(answer.decision(), Decision::Granted);
        answer.lease_id
    }

    fn give_back(&self, lease_id: String, outcome: Outcome) {
        self.release(LeaseEnd {
            lease_id,
            outcome: outcome.into(),
            ..LeaseEnd::default()
        });
    }

    fn left(&self, key: &str) -> u64 {
        let request = PeekRequest {
            domain: "d".into(),
            descriptors: vec![descriptor(key, "x")],
            ..PeekRequest::default()
        };
        let peeked = support::now(self.limiter.peek(Request::new(request))).unwrap();
        peeked.into_inner().descriptors[0].limits[0].remaining
    }

    fn pass_seconds(&self, seconds: u64) {
        self.pass(Span::from_secs(seconds));
    }
}

fn request(keys: &[&str]) -> AcquireRequest {
    let item = |key: &&str| Item {
        descriptor: Some(descriptor(key, "x")),
        ..Item::default()
    };
    desk::request(keys.iter().map(item).collect())
}

#[test]
fn what_was_dropped_is_given_back_if_the_rule_says_so() {
    let desk = desk();
    for outcome in [Outcome::Success, Outcome::Ignored, Outcome::Dropped] {
        desk.give_back(desk.take(&["never", "tenant"]), outcome);
    }
    assert_eq!(desk.left("tenant"), 2);
    desk.give_back(desk.take(&["dropped", "tenant"]), Outcome::Success);
    assert_eq!(desk.left("tenant"), 1);
    for _ in 0..10 {
        let lease = desk.take(&["dropped", "tenant"]);
        assert_eq!(desk.left("tenant"), 0);
        desk.give_back(lease.clone(), Outcome::Dropped);
        assert_eq!(desk.left("tenant"), 1);
        // Twice is once.
        desk.give_back(lease, Outcome::Dropped);
        assert_eq!(desk.left("tenant"), 1);
    }
    // Expiry is something else.
    desk.take(&["dropped", "tenant"]);
    desk.pass_seconds(10);
    assert_eq!(desk.left("tenant"), 0);
}

#[test]
fn what_expired_is_given_back_if_the_rule_says_so() {
    let desk = desk();
    desk.give_back(desk.take(&["expired", "tenant"]), Outcome::Dropped);
    assert_eq!(desk.left("tenant"), 4);
    let lease = desk.take(&["tenant", "expired", "bucket"]);
    assert_eq!((desk.left("tenant"), desk.left("bucket")), (3, 59));
    desk.pass_seconds(10);
    // The bucket is full again by itself.
    assert_eq!((desk.left("tenant"), desk.left("bucket")), (4, 60));
    desk.give_back(lease, Outcome::Success);
    assert_eq!(desk.left("tenant"), 4);
}

#[test]
fn what_came_back_by_itself_is_not_given_back_again() {
    let desk = desk();
    desk.pass_seconds(15);
    desk.take(&["expired", "tenant", "bucket"]);
    // The minute ends before the lease; in the next one somebody else takes.
    desk.pass_seconds(5);
    desk.give_back(desk.take(&["never", "tenant", "bucket"]), Outcome::Success);
    assert_eq!(desk.left("tenant"), 4);
    desk.pass_seconds(4);
    desk.give_back(desk.take(&["never", "bucket"]), Outcome::Success);
    assert_eq!(desk.left("bucket"), 59);
    desk.pass_seconds(1);
    assert_eq!(desk.left("tenant"), 4);
}

#[tokio::test]
async fn a_request_that_waited_gives_back_too() {
    let desk = desk();
    let first = desk.take(&["dropped"]);
    let patient = AcquireRequest {
        max_wait: Some(prost_types::Duration {
            seconds: 5,
            nanos: 0,
        }),
        ..request(&["dropped", "tenant"])
    };
    let mut waiting = pin!(desk.limiter.acquire(Request::new(patient)));
    tokio::select! {
        biased;
        answer = &mut waiting => panic!("{answer:?}"),
        () = async {} => {}
    }
    assert_eq!(desk.left("tenant"), 5);
    desk.give_back(first, Outcome::Success);
    let granted = waiting.await.unwrap().into_inner();
    assert_eq!(granted.decision(), Decision::Granted);
    assert_eq!(desk.left("tenant"), 4);
    desk.give_back(granted.lease_id, Outcome::Dropped);
    assert_eq!(desk.left("tenant"), 5);
}
