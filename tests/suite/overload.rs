//! Too much of everything: what is refused, how it is said, and who goes on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use porteiro::{
    api::wire::Asked,
    model::time::Span,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
    },
    server::{Options, Transport, noop::Noop},
};
use tokio::sync::{Notify, Semaphore};
use tonic::{Code, Request, Response, Status, async_trait};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    frames::Raw,
    serving::{TestServer, ask, options, within},
};

/// Waits until the test says so, like a call that needs a store.
#[derive(Clone)]
struct Waits {
    asked: Arc<Notify>,
    go: Arc<Semaphore>,
    decided: Arc<AtomicU64>,
}

impl Waits {
    fn new() -> Self {
        Self {
            asked: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
            decided: Arc::default(),
        }
    }
}

impl Asked for Waits {}

#[async_trait]
impl RateLimitService for Waits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.decided.fetch_add(1, Ordering::SeqCst);
        self.asked.notify_one();
        self.go.acquire().await.unwrap().forget();
        Noop.should_rate_limit(request).await
    }
}

fn with(transport: Transport) -> Options {
    Options {
        transport,
        ..options()
    }
}

#[tokio::test]
async fn one_waiting_call_too_many_is_told_when_to_come_back() {
    let waits = Waits::new();
    // One for each of the two workers.
    let options = with(Transport {
        max_calls: 2,
        ..Transport::default()
    });
    let server = TestServer::start(waits.clone(), options).await;
    let mut client = server.client().await;
    let mut same = client.clone();
    let first = tokio::spawn(async move { client.should_rate_limit(ask("d", "k", "v")).await });
    waits.asked.notified().await;
    let status = within(same.should_rate_limit(ask("d", "k", "v")))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(
        status.message().contains("max-concurrent-calls"),
        "{status:?}"
    );
    let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    assert_eq!(pushback, "100");
    assert_eq!(waits.decided.load(Ordering::SeqCst), 1, "nothing was begun");
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 1);
    // Health is answered, on the same worker too.
    for _ in 0..2 {
        let mut health = HealthClient::new(server.channel().await);
        health.check(HealthCheckRequest::default()).await.unwrap();
    }
    waits.go.add_permits(2);
    within(first).await.unwrap().unwrap();
    within(same.should_rate_limit(ask("d", "k", "v")))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_request_that_is_complete_after_its_timeout_is_not_decided() {
    let waits = Waits::new();
    waits.go.add_permits(10);
    let server = TestServer::start(waits.clone(), options()).await;
    let mut raw = Raw::open(&server).await;
    raw.begin(1, &[("grpc-timeout", "100m")]).await;
    raw.begin(3, &[("grpc-timeout", "10S")]).await;
    raw.begin(5, &[]).await;
    // The answer to the second PING is written after the calls were begun.
    assert!(raw.pong().await && raw.pong().await);
    server.clock.advance(Span::from_secs(1));
    for stream in [1, 3, 5] {
        raw.finish(stream).await;
    }
    assert!(raw.pong().await && raw.pong().await);
    assert_eq!(waits.decided.load(Ordering::SeqCst), 2);
    assert_eq!(server.counter("porteiro_calls_expired_total").await, 1);
}

#[tokio::test]
async fn a_call_that_was_given_up_before_it_was_read_is_not_decided() {
    let waits = Waits::new();
    waits.go.add_permits(1000);
    let server = TestServer::start(waits.clone(), options()).await;
    let mut raw = Raw::open(&server).await;
    assert!(raw.pong().await);
    // All in one segment, as after a stall of ours.
    raw.call_and_give_up(100).await;
    assert!(raw.pong().await && raw.pong().await);
    assert_eq!(waits.decided.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_connection_that_asks_nothing_leaves_and_one_that_waits_does_not() {
    let waits = Waits::new();
    let options = with(Transport {
        max_idle: Some(Duration::from_millis(20)),
        ..Transport::default()
    });
    let server = TestServer::start(waits.clone(), options).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.should_rate_limit(ask("d", "k", "v")).await });
    waits.asked.notified().await;
    for _ in 0..3 {
        let mut idle = Raw::open(&server).await;
        assert_eq!(idle.end().await, Some(0), "asked to leave, not cut");
    }
    waits.go.add_permits(1);
    within(call).await.unwrap().unwrap();
}
