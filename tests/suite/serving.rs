//! A whole server on free ports of loopback, in the runtime of the test.

use std::{collections::BTreeMap, future::pending, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use porteiro::{
    api::{bounds::Bounds, limiter::Limiter, wire::Asked},
    model::time::{ManualClock, Timestamp},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
    },
    proto::porteiro::v1::limiter_service_server::LimiterServiceServer,
    server::{
        self, Address, App, Health, Inside, Listener, Listeners, Load, Loaded, OnStop, Options,
        Reloads, ServerError, Stats, Stopped, Watch, loader,
    },
    store::connections::Connections,
    telemetry::logging::LevelControl,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tonic::{
    service::Routes,
    transport::{Channel, Endpoint},
};

use crate::support::{REQUEST, Service, message, service};

/// Nothing here takes long; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that runs until it is stopped or dropped.
pub(crate) struct TestServer {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) stats: Arc<Stats>,
    pub(crate) health: Health,
    pub(crate) reloads: Reloads,
    /// The server's own clock; that of the rules is another one.
    pub(crate) clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    hurry: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<Stopped, ServerError>>,
}

/// Two workers and deadlines that no test waits for.
pub(crate) fn options() -> Options {
    Options {
        drain_deadline: PATIENCE,
        ..Options::default()
    }
}

fn loads_nothing() -> Load {
    Arc::new(|| {
        Ok(Loaded {
            domains: 1,
            ..Loaded::default()
        })
    })
}

struct NoInside;

impl Inside for NoInside {
    fn rules(&self) -> serde_json::Value {
        serde_json::json!({"d": []})
    }

    fn metrics(&self) -> String {
        "of_the_engine 1\n".to_owned()
    }
}

impl TestServer {
    /// Serves rules with a clock that stands until the test moves it.
    pub(crate) async fn with_rules(yaml: &str, options: Options) -> (Self, ManualClock) {
        let files = BTreeMap::from([("rules.yaml".to_owned(), yaml.to_owned())]);
        let service = service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000_000));
        let clock = service.clock.clone();
        (Self::start(service.rls, options).await, clock)
    }

    /// Serves rules with everything that asks for them: the rate limit and the limiter service.
    pub(crate) async fn with_limiter(yaml: &str) -> (Self, Service) {
        Self::with_limiter_and(yaml, options()).await
    }

    async fn with_service(service: &Service, options: Options) -> Self {
        let engine = Arc::clone(&service.engine);
        let limiter = Limiter::new(Arc::clone(&engine), Bounds::default());
        let services = Routes::new(LimiterServiceServer::new(limiter));
        let on_stop: OnStop = Box::new(move |left| {
            let now = engine.clock().now();
            engine.leases().drain(now.steady + left.into(), now);
        });
        let rls = service.rls.clone();
        let connections = Arc::clone(service.engine.leases().connections());
        let app = (rls, services, Some(connections));
        Self::serve(app, loads_nothing(), options, on_stop).await
    }

    /// As [`TestServer::with_limiter`], with options of the test's own.
    pub(crate) async fn with_limiter_and(yaml: &str, options: Options) -> (Self, Service) {
        let files = BTreeMap::from([("rules.yaml".to_owned(), yaml.to_owned())]);
        let service = service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000_000));
        (Self::with_service(&service, options).await, service)
    }

    /// Serves a service of the test's own.
    pub(crate) async fn start(rate_limit: impl Asked, options: Options) -> Self {
        Self::start_loading(rate_limit, loads_nothing(), options).await
    }

    /// Serves a service of the test's own, whose rules are loaded by the test.
    pub(crate) async fn start_loading(
        rate_limit: impl Asked,
        load: Load,
        options: Options,
    ) -> Self {
        let on_stop = Box::new(|_| ());
        Self::serve(
            (rate_limit, Routes::default(), None),
            load,
            options,
            on_stop,
        )
        .await
    }

    async fn serve(
        (rate_limit, services, connections): (impl Asked, Routes, Option<Arc<Connections>>),
        load: Load,
        options: Options,
        on_stop: OnStop,
    ) -> Self {
        let by_hand = ManualClock::at(Timestamp::from_secs(1_000_000));
        let clock = by_hand.clock();
        let (health, starting) = Health::new(false);
        let (reloads, loader) = loader(load, Watch::default(), clock.clone());
        let stats = Arc::new(Stats::new(2));
        let app = App {
            rate_limit: Arc::new(rate_limit),
            services,
            admin: Router::new(),
            inside: Arc::new(NoInside),
            stats: Arc::clone(&stats),
            health: health.clone(),
            starting,
            connections,
            loader,
            reloads: reloads.clone(),
            log_level: LevelControl::default(),
            log_refusals: Arc::default(),
            on_stop,
            spans: None,
            clock,
        };
        let listen = || {
            let listener = Listener::loopback().unwrap();
            let Address::Tcp { host, port } = listener.address() else {
                panic!("TCP expected")
            };
            (listener, SocketAddr::new(host.parse().unwrap(), port))
        };
        let ((grpc, grpc_at), (http, http_at)) = (listen(), listen());
        let ((admin, admin_at), (metrics, metrics_at)) = (listen(), listen());
        let listeners = Listeners {
            grpc,
            http,
            admin,
            metrics: Some(metrics),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (hurry, hurried) = oneshot::channel::<()>();
        let told = async |told: oneshot::Receiver<()>| {
            if told.await.is_err() {
                pending::<()>().await;
            }
        };
        let ended = tokio::spawn(server::run(
            app,
            options,
            listeners,
            told(stopped),
            told(hurried),
        ));
        let server = Self {
            grpc: grpc_at,
            http: http_at,
            admin: admin_at,
            metrics: metrics_at,
            stats,
            health,
            reloads,
            clock: by_hand,
            stop: Some(stop),
            hurry: Some(hurry),
            ended,
        };
        eventually("ready", || server.health.ready()).await;
        server
    }

    /// What the first signal does.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// What the second signal does.
    pub(crate) fn hurry(&mut self) {
        self.hurry.take().unwrap().send(()).unwrap();
    }

    /// Waits for the end.
    pub(crate) async fn ended(self) -> Stopped {
        within(self.ended).await.unwrap().unwrap()
    }

    /// A gRPC connection of its own.
    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        within(endpoint.connect()).await.unwrap()
    }

    /// A client with a connection of its own.
    pub(crate) async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }
}

impl TestServer {
    /// The value of one line of `/metrics`.
    pub(crate) async fn counter(&self, name: &str) -> u64 {
        let (_, _, page) = http(self.admin, "GET", "/metrics", "").await;
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect("the counter").parse().unwrap()
    }
}

/// The output of a future that must not take long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("took too long")
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("never {what}"));
}

/// A request with one descriptor of one entry.
pub(crate) fn ask(domain: &str, key: &str, value: &str) -> RateLimitRequest {
    message(
        REQUEST,
        &serde_json::json!({
            "domain": domain,
            "descriptors": [{"entries": [{"key": key, "value": value}]}],
        }),
    )
}

/// The overall code by name.
pub(crate) fn code(answer: &RateLimitResponse) -> &'static str {
    answer.overall_code().as_str_name()
}

/// One HTTP/1 request as its bytes, and the bytes that come back until the end.
pub(crate) async fn bytes(to: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    // The other side may have heard enough before it has heard all.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    // A reset after the answer is an end too.
    let _ = within(stream.read_to_end(&mut answer)).await;
    answer
}

/// An HTTP/1 request; status, head in lower case, and body of the answer.
pub(crate) async fn http(
    to: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String, String) {
    http_with(to, method, path, "", body).await
}

/// The same with more lines in the head of the request, each with its end.
pub(crate) async fn http_with(
    to: SocketAddr,
    method: &str,
    path: &str,
    lines: &str,
    body: &str,
) -> (u16, String, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{lines}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = String::from_utf8(bytes(to, request.as_bytes()).await).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}
