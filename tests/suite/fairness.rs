//! One connection with very much beside one with little.

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
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

/// Remembers the order in which calls are decided. The first one holds its worker up until the test
/// says so: what arrives meanwhile waits in the sockets, and is read as after a stall.
#[derive(Clone)]
struct Ordered {
    began: mpsc::SyncSender<()>,
    go: Arc<Mutex<mpsc::Receiver<()>>>,
    decided: Arc<Mutex<Vec<String>>>,
}

impl Asked for Ordered {}

#[async_trait]
impl RateLimitService for Ordered {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let domain = request.get_ref().domain.clone();
        if domain == "stop" {
            self.began.send(()).unwrap();
            self.go.lock().recv().unwrap();
        } else {
            self.decided.lock().push(domain);
        }
        Noop.should_rate_limit(request).await
    }
}

const MANY: u32 = 4_000;

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_little_is_answered_before_all_of_who_asks_much() {
    let (began, has_begun) = mpsc::sync_channel(1);
    let (go, gone) = mpsc::sync_channel(1);
    let ordered = Ordered {
        began,
        go: Arc::new(Mutex::new(gone)),
        decided: Arc::default(),
    };
    let decided = Arc::clone(&ordered.decided);
    let transport = Transport {
        max_streams: 10_000,
        ..Transport::default()
    };
    let server = TestServer::start(
        ordered,
        Options {
            transport,
            ..options()
        },
    )
    .await;
    // Handed out in turn: greedy and modest share the first worker, with the one that stops it.
    let mut greedy = Raw::open(&server).await;
    assert!(greedy.pong().await);
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut other = Raw::open(&server).await;
        assert!(other.pong().await);
        others.push(other);
    }
    assert_eq!(server.stats.open(), [3, 2]);
    let [_, modest, _, stops] = &mut others[..] else {
        unreachable!()
    };
    stops.calls(1, "stop").await;
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap())
        .await
        .unwrap();
    // Thousands of calls, and behind them one.
    greedy.calls(MANY, "greedy").await;
    modest.calls(1, "modest").await;
    go.send(()).unwrap();
    let all = usize::try_from(MANY).unwrap() + 1;
    eventually("decided", || decided.lock().len() == all).await;
    let before = decided.lock().iter().position(|who| who == "modest");
    let before = before.unwrap();
    println!("{before} of {MANY} calls were decided before");
    assert!(before <= 1_500, "{before}");
}

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
