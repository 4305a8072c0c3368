//! One connection whose calls wait beside others that have some, too.

use std::sync::Arc;

use porteiro::{
    api::wire::Asked,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
    },
    server::{Options, Transport, noop::Noop},
};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, async_trait};

use crate::{
    frames::Raw,
    serving::{TestServer, ask, eventually, options, within},
};

/// Waits for a permit of the test's.
#[derive(Clone)]
struct Waits(Arc<Semaphore>);

impl Asked for Waits {}

#[async_trait]
impl RateLimitService for Waits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.0.acquire().await.unwrap().forget();
        Noop.should_rate_limit(request).await
    }
}

#[tokio::test]
async fn one_connection_gets_half_of_the_places_for_calls_that_wait() {
    let go = Arc::new(Semaphore::new(0));
    // Eight for each of the two workers.
    let transport = Transport {
        max_calls: 16,
        ..Transport::default()
    };
    let server = TestServer::start(
        Waits(Arc::clone(&go)),
        Options {
            transport,
            ..options()
        },
    )
    .await;
    let mut greedy = Raw::open(&server).await;
    greedy.calls(20, "greedy").await;
    assert!(greedy.pong().await && greedy.pong().await);
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 16);
    // On the other worker, and on the same one: four places are left there.
    let mut elsewhere = Raw::open(&server).await;
    assert!(elsewhere.pong().await);
    let mut second = Raw::open(&server).await;
    second.calls(20, "second").await;
    assert!(second.pong().await && second.pong().await);
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 16 + 18);
    assert_eq!(server.stats.open(), [2, 1]);
    let _elsewhere = Raw::open(&server).await;
    eventually("open", || server.stats.open() == [2, 2]).await;
    let mut modest = server.client().await;
    let mut again = modest.clone();
    let call = tokio::spawn(async move { modest.should_rate_limit(ask("d", "k", "v")).await });
    eventually("open", || server.stats.open() == [3, 2]).await;
    // Who gave its places back has its share again.
    go.add_permits(7);
    within(call).await.unwrap().unwrap();
    go.add_permits(1);
    within(again.should_rate_limit(ask("d", "k", "v")))
        .await
        .unwrap();
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 16 + 18);
}
