//! Rate units that are given back with the lease they were taken with.

use std::{collections::BTreeMap, pin::pin, sync::Arc};

use porteiro::{
    api::{bounds::Bounds, limiter::Limiter},
    model::time::{Span, Timestamp},
    proto::{
        envoy::extensions::common::ratelimit::v3::{
            RateLimitDescriptor, rate_limit_descriptor::Entry,
        },
        porteiro::v1::{
            AcquireRequest, AcquireResponse, Item, LeaseEnd, PeekRequest, ReleaseRequest,
            acquire_response::Decision, lease_end::Outcome, limiter_service_server::LimiterService,
        },
    },
};
use tonic::Request;

use crate::support::{self, Service};

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

/// The service in the process, 20 seconds before the end of a minute.
struct Desk {
    service: Service,
    limiter: Limiter,
}

impl Desk {
    fn new() -> Self {
        let files = BTreeMap::from([("rules.yaml".to_owned(), RULES.to_owned())]);
        let service = support::service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000_000));
        let engine = Arc::clone(&service.engine);
        let limiter = Limiter::new(engine, Bounds::default());
        Self { service, limiter }
    }

    fn acquire(&self, keys: &[&str]) -> AcquireResponse {
        let answer = support::now(self.limiter.acquire(Request::new(request(keys))));
        answer.unwrap().into_inner()
    }

    fn take(&self, keys: &[&str]) -> String {
        let answer = self.acquire(keys);
        assert_eq!(answer.decision(), Decision::Granted);
        answer.lease_id
    }

    fn release(&self, lease_id: String, outcome: Outcome) {
        let end = LeaseEnd {
            lease_id,
            outcome: outcome.into(),
            ..LeaseEnd::default()
        };
        let request = ReleaseRequest {
            leases: vec![end],
            holder: None,
        };
        support::now(self.limiter.release(Request::new(request))).unwrap();
    }

    fn left(&self, key: &str) -> u64 {
        let request = PeekRequest {
            domain: "d".into(),
            descriptors: vec![descriptor(key)],
            ..PeekRequest::default()
        };
        let peeked = support::now(self.limiter.peek(Request::new(request))).unwrap();
        peeked.into_inner().descriptors[0].limits[0].remaining
    }

    /// Time passes, and somebody looks.
    fn pass(&self, seconds: u64) {
        self.service.clock.advance(Span::from_secs(seconds));
        let now = self.service.clock.now();
        self.service.engine.leases().turn(now);
    }
}

fn descriptor(key: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry {
            key: key.into(),
            value: "x".into(),
        }],
        ..RateLimitDescriptor::default()
    }
}

fn request(keys: &[&str]) -> AcquireRequest {
    let item = |key: &&str| Item {
        descriptor: Some(descriptor(key)),
        ..Item::default()
    };
    AcquireRequest {
        domain: "d".into(),
        items: keys.iter().map(item).collect(),
        ..AcquireRequest::default()
    }
}

#[test]
fn what_was_dropped_is_given_back_if_the_rule_says_so() {
    let desk = Desk::new();
    for outcome in [Outcome::Success, Outcome::Ignored, Outcome::Dropped] {
        desk.release(desk.take(&["never", "tenant"]), outcome);
    }
    assert_eq!(desk.left("tenant"), 2);
    desk.release(desk.take(&["dropped", "tenant"]), Outcome::Success);
    assert_eq!(desk.left("tenant"), 1);
    for _ in 0..10 {
        let lease = desk.take(&["dropped", "tenant"]);
        assert_eq!(desk.left("tenant"), 0);
        desk.release(lease.clone(), Outcome::Dropped);
        assert_eq!(desk.left("tenant"), 1);
        // Twice is once.
        desk.release(lease, Outcome::Dropped);
        assert_eq!(desk.left("tenant"), 1);
    }
    // Expiry is something else.
    desk.take(&["dropped", "tenant"]);
    desk.pass(10);
    assert_eq!(desk.left("tenant"), 0);
}

#[test]
fn what_expired_is_given_back_if_the_rule_says_so() {
    let desk = Desk::new();
    desk.release(desk.take(&["expired", "tenant"]), Outcome::Dropped);
    assert_eq!(desk.left("tenant"), 4);
    let lease = desk.take(&["tenant", "expired", "bucket"]);
    assert_eq!((desk.left("tenant"), desk.left("bucket")), (3, 59));
    desk.pass(10);
    // The bucket is full again by itself.
    assert_eq!((desk.left("tenant"), desk.left("bucket")), (4, 60));
    desk.release(lease, Outcome::Success);
    assert_eq!(desk.left("tenant"), 4);
}

#[test]
fn what_came_back_by_itself_is_not_given_back_again() {
    let desk = Desk::new();
    desk.pass(15);
    desk.take(&["expired", "tenant", "bucket"]);
    // The minute ends before the lease; in the next one somebody else takes.
    desk.pass(5);
    desk.release(desk.take(&["never", "tenant", "bucket"]), Outcome::Success);
    assert_eq!(desk.left("tenant"), 4);
    desk.pass(4);
    desk.release(desk.take(&["never", "bucket"]), Outcome::Success);
    assert_eq!(desk.left("bucket"), 59);
    desk.pass(1);
    assert_eq!(desk.left("tenant"), 4);
}

#[tokio::test]
async fn a_request_that_waited_gives_back_too() {
    let desk = Desk::new();
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
    desk.release(first, Outcome::Success);
    let granted = waiting.await.unwrap().into_inner();
    assert_eq!(granted.decision(), Decision::Granted);
    assert_eq!(desk.left("tenant"), 4);
    desk.release(granted.lease_id, Outcome::Dropped);
    assert_eq!(desk.left("tenant"), 5);
}
