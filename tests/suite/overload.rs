//! Too much of everything: what is refused, how it is said, and who goes on.

use std::time::Duration;

use porteiro::{
    model::time::Span,
    server::{Options, Transport},
};
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{
    frames::Raw,
    held::Held,
    serving::{TestServer, ask, options, within},
};

fn with(transport: Transport) -> Options {
    Options {
        transport,
        ..options()
    }
}

#[tokio::test]
async fn one_waiting_call_too_many_is_told_when_to_come_back() {
    let held = Held::new();
    // One for each of the two workers.
    let options = with(Transport {
        max_calls: 2,
        ..Transport::default()
    });
    let server = TestServer::start(held.clone(), options).await;
    let mut client = server.client().await;
    let mut same = client.clone();
    let first = tokio::spawn(async move { client.should_rate_limit(ask("d", "k", "v")).await });
    held.asked.notified().await;
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
    assert_eq!(held.calls(), 1, "nothing was begun");
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 1);
    // Health is answered, on the same worker too.
    for _ in 0..2 {
        let mut health = HealthClient::new(server.channel().await);
        health.check(HealthCheckRequest::default()).await.unwrap();
    }
    held.go.add_permits(2);
    within(first).await.unwrap().unwrap();
    within(same.should_rate_limit(ask("d", "k", "v")))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_request_that_is_complete_after_its_timeout_is_not_decided() {
    let held = Held::new();
    held.go.add_permits(10);
    let server = TestServer::start(held.clone(), options()).await;
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
    assert_eq!(held.calls(), 2);
    assert_eq!(server.counter("porteiro_calls_expired_total").await, 1);
}

#[tokio::test]
async fn a_call_that_was_given_up_before_it_was_read_is_not_decided() {
    let held = Held::new();
    held.go.add_permits(1000);
    let server = TestServer::start(held.clone(), options()).await;
    let mut raw = Raw::open(&server).await;
    assert!(raw.pong().await);
    // All in one segment, as after a stall of ours.
    raw.call_and_give_up(100).await;
    assert!(raw.pong().await && raw.pong().await);
    assert_eq!(held.calls(), 0);
}

#[tokio::test]
async fn a_connection_that_asks_nothing_leaves_and_one_that_held_does_not() {
    let held = Held::new();
    let options = with(Transport {
        max_idle: Some(Duration::from_millis(20)),
        ..Transport::default()
    });
    let server = TestServer::start(held.clone(), options).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.should_rate_limit(ask("d", "k", "v")).await });
    held.asked.notified().await;
    for _ in 0..3 {
        let mut idle = Raw::open(&server).await;
        assert_eq!(idle.end().await, Some(0), "asked to leave, not cut");
    }
    held.go.add_permits(1);
    within(call).await.unwrap().unwrap();
}
