//! Spans of calls: the program as a process, a small OTLP receiver in the test.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::{Router, extract::State, routing::post};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use porteiro::proto::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{
            RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
        },
    },
    porteiro::v1::{
        AcquireRequest, Item, PeekRequest, ReleaseRequest, ShouldRateLimitBatchRequest,
        limiter_service_client::LimiterServiceClient,
    },
};
use prost::Message as _;
use rustls::ServerConfig;
use tokio::{net::TcpListener, sync::mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    body::Body,
    server::{Grpc, NamedService, UnaryService},
    transport::{Channel, Server},
};

use crate::{
    certificates::Authority,
    process::{File, Serving},
    serving::{self, within},
};

/// What is looked at of `opentelemetry.proto.collector.trace.v1`, with the same numbers.
mod otlp {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ExportRequest {
        #[prost(message, repeated, tag = "1")]
        pub(super) resource_spans: Vec<ResourceSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ResourceSpans {
        #[prost(message, optional, tag = "1")]
        pub(super) resource: Option<Resource>,
        #[prost(message, repeated, tag = "2")]
        pub(super) scope_spans: Vec<ScopeSpans>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Resource {
        #[prost(message, repeated, tag = "1")]
        pub(super) attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ScopeSpans {
        #[prost(message, repeated, tag = "2")]
        pub(super) spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) own: Vec<u8>,
        #[prost(string, tag = "3")]
        pub(super) trace_state: String,
        #[prost(bytes = "vec", tag = "4")]
        pub(super) parent_span_id: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(super) name: String,
        #[prost(fixed64, tag = "7")]
        pub(super) start: u64,
        #[prost(fixed64, tag = "8")]
        pub(super) end: u64,
        #[prost(message, repeated, tag = "9")]
        pub(super) attributes: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct KeyValue {
        #[prost(string, tag = "1")]
        pub(super) key: String,
        #[prost(message, optional, tag = "2")]
        pub(super) value: Option<AnyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct AnyValue {
        #[prost(string, optional, tag = "1")]
        pub(super) text: Option<String>,
        #[prost(int64, optional, tag = "3")]
        pub(super) number: Option<i64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ExportResponse {}
}

impl otlp::Span {
    fn attribute(&self, key: &str) -> String {
        attribute(&self.attributes, key)
    }
}

/// Empty when it is not there.
fn attribute(attributes: &[otlp::KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|known| known.key == key);
    let value = found.and_then(|known| known.value.clone());
    value.map_or_else(String::new, |value| {
        let number = value.number.map(|number| number.to_string());
        value.text.or(number).unwrap_or_default()
    })
}

/// Hands what is exported to the test.
#[derive(Clone)]
struct Collector(mpsc::Sender<otlp::ExportRequest>);

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

type Answered<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

impl tower_service::Service<Request<Body>> for Collector {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answered<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let collector = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(tonic_prost::ProstCodec::default());
            Ok(grpc.unary(collector, request).await)
        })
    }
}

impl UnaryService<otlp::ExportRequest> for Collector {
    type Response = otlp::ExportResponse;
    type Future = Answered<Result<tonic::Response<otlp::ExportResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<otlp::ExportRequest>) -> Self::Future {
        let exported = self.0.clone();
        Box::pin(async move {
            let _ = exported.send(request.into_inner()).await;
            Ok(tonic::Response::new(otlp::ExportResponse {}))
        })
    }
}

async fn collector() -> (String, mpsc::Receiver<otlp::ExportRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (exported, seen) = mpsc::channel(64);
    let serving = Server::builder()
        .add_service(Collector(exported))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(async { serving.await.unwrap() });
    (format!("http://{at}"), seen)
}

/// What an HTTP collector has: whom it tells, and whether it was asked before.
#[derive(Clone)]
struct Posted {
    exported: mpsc::Sender<otlp::ExportRequest>,
    was_asked: Arc<AtomicBool>,
}

/// The first batch finds it not ready yet.
async fn posted(State(posted): State<Posted>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if !posted.was_asked.swap(true, Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let is = |name: &str, want: &str| headers.get(name).is_some_and(|value| value == want);
    if !is("content-type", "application/x-protobuf") || !is("authorization", "Basic YTpi=") {
        return StatusCode::BAD_REQUEST;
    }
    let request = otlp::ExportRequest::decode(body).unwrap();
    posted.exported.send(request).await.unwrap();
    StatusCode::OK
}

/// A collector over HTTP/1.
async fn http_collector(
    tls: Option<ServerConfig>,
) -> (SocketAddr, mpsc::Receiver<otlp::ExportRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (exported, seen) = mpsc::channel(64);
    let state = Posted {
        exported,
        was_asked: Arc::default(),
    };
    let router = Router::new().route("/v1/traces", post(posted));
    let service = TowerToHyperService::new(router.with_state(state));
    let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (tls, service) = (tls.clone(), service.clone());
            tokio::spawn(async move {
                let http = http1::Builder::new();
                // Whoever goes away in the middle is none of ours.
                let _ = match tls {
                    None => http.serve_connection(TokioIo::new(tcp), service).await,
                    Some(tls) => {
                        let io = TokioIo::new(tls.accept(tcp).await.unwrap());
                        http.serve_connection(io, service).await
                    }
                };
            });
        }
    });
    (at, seen)
}

const RULES: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {name: daily, unit: day, requests_per_unit: 1}}
- {key: work, concurrency: {limit: 1}}
";

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        }],
        ..RateLimitDescriptor::default()
    }
}

fn ask(key: &str, value: &str) -> RateLimitRequest {
    RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![descriptor(key, value)],
        hits_addend: 0,
    }
}

/// A call within a trace whose caller is recorded, or is not.
fn traced<T>(message: T, sampled: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let parent = format!("00-{TRACE}-{SPAN}-{sampled}");
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", parent.parse().unwrap());
    metadata.insert("tracestate", "vendor=1".parse().unwrap());
    request
}

async fn channel(porteiro: &Serving) -> Channel {
    let uri = format!("http://{}", porteiro.grpc);
    Channel::from_shared(uri).unwrap().connect().await.unwrap()
}

/// Everything that is exported until the process has ended.
async fn all_spans(
    porteiro: Serving,
    mut seen: mpsc::Receiver<otlp::ExportRequest>,
) -> (Vec<otlp::Resource>, Vec<otlp::Span>) {
    porteiro.signal("-TERM");
    let ended = tokio::task::spawn_blocking(move || porteiro.end());
    let (mut resources, mut spans) = (Vec::new(), Vec::new());
    within(ended).await.unwrap();
    while let Ok(exported) = seen.try_recv() {
        for of_resource in exported.resource_spans {
            resources.extend(of_resource.resource);
            let scopes = of_resource.scope_spans.into_iter();
            spans.extend(scopes.flat_map(|scope| scope.spans));
        }
    }
    (resources, spans)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_have_spans_in_the_trace_of_their_caller() {
    let (url, seen) = collector().await;
    let file = File::new("spans-callers", RULES);
    let args = [
        "--config",
        file.path(),
        "--otlp",
        &url,
        "--otlp-service-name",
        "limits",
    ];
    let mut porteiro = Serving::listening(&args, &[]);
    porteiro.line_with("rules loaded");
    let channel = channel(&porteiro).await;
    let mut rls = RateLimitServiceClient::new(channel.clone());
    let mut limiter = LimiterServiceClient::new(channel);
    for _ in 0..2 {
        within(rls.should_rate_limit(traced(ask("k", "ann@example"), "01")))
            .await
            .unwrap();
    }
    // Whose caller is not recorded is not.
    within(rls.should_rate_limit(traced(ask("k", "bob"), "00")))
        .await
        .unwrap();
    let batch = ShouldRateLimitBatchRequest {
        requests: vec![ask("k", "eve"), ask("k", "eve"), ask("k", "eve")],
    };
    within(limiter.should_rate_limit_batch(traced(batch, "01")))
        .await
        .unwrap();
    let acquire = AcquireRequest {
        domain: "d".to_owned(),
        items: vec![Item {
            descriptor: Some(descriptor("work", "x")),
            ..Item::default()
        }],
        ..AcquireRequest::default()
    };
    for _ in 0..2 {
        within(limiter.acquire(traced(acquire.clone(), "01")))
            .await
            .unwrap();
    }
    let none = ReleaseRequest::default();
    within(limiter.release(traced(none, "01"))).await.unwrap();
    let wrong = within(limiter.peek(traced(PeekRequest::default(), "01"))).await;
    assert_eq!(wrong.unwrap_err().code(), tonic::Code::InvalidArgument);

    let (resources, spans) = all_spans(porteiro, seen).await;
    assert_eq!(
        attribute(&resources[0].attributes, "service.name"),
        "limits"
    );
    let told: Vec<[String; 6]> = spans
        .iter()
        .map(|span| {
            let attribute = |key| span.attribute(key);
            [
                attribute("rpc.method"),
                attribute("porteiro.domain"),
                attribute("porteiro.code"),
                attribute("porteiro.limit"),
                attribute("porteiro.reason"),
                attribute("rpc.grpc.status_code"),
            ]
        })
        .collect();
    let want = [
        ["ShouldRateLimit", "d", "OK", "d.k/daily", "", "0"],
        [
            "ShouldRateLimit",
            "d",
            "OVER_LIMIT",
            "d.k/daily",
            "rate",
            "0",
        ],
        [
            "ShouldRateLimitBatch",
            "d",
            "OVER_LIMIT",
            "d.k/daily",
            "rate",
            "0",
        ],
        ["Acquire", "d", "OK", "", "", "0"],
        ["Acquire", "d", "OVER_LIMIT", "d.work", "concurrency", "0"],
        ["Release", "", "", "", "", "0"],
        ["Peek", "", "", "", "", "3"],
    ];
    assert_eq!(told, want.map(|texts| texts.map(str::to_owned)));
    for span in &spans {
        assert_eq!(hex(&span.trace_id), TRACE);
        assert_eq!(hex(&span.parent_span_id), SPAN);
        assert_ne!(hex(&span.own), SPAN);
        assert_eq!(span.trace_state, "vendor=1");
        assert!(span.start <= span.end && span.start > 1_500_000_000_000_000_000);
        assert_eq!(
            span.name,
            span.attribute("rpc.service") + "/" + &span.attribute("rpc.method")
        );
    }
    let batch = &spans[2];
    let counts = ["porteiro.decisions", "porteiro.refused"].map(|key| batch.attribute(key));
    assert_eq!(counts, ["3", "2"]);
    let texts = format!("{spans:?}");
    assert!(!texts.contains("ann@example"), "{texts}");
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_caller_begin_a_trace_as_often_as_wanted() {
    for (ratio, want) in [("1", 8), ("0", 0)] {
        let (url, seen) = collector().await;
        let file = File::new(&format!("spans-roots-{ratio}"), RULES);
        let environment = [
            ("TRACING_ENABLED", "true"),
            ("TRACING_EXPORTER_PROTOCOL", "grpc"),
            ("TRACING_SAMPLING_RATE", ratio),
            ("TRACING_SERVICE_NAMESPACE", "edge"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ];
        let mut porteiro = Serving::listening(&["--config", file.path()], &environment);
        porteiro.line_with("rules loaded");
        let http: SocketAddr = porteiro.http.parse().unwrap();
        for _ in 0..8 {
            let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]}]}"#;
            serving::http(http, "POST", "/json", body).await;
        }
        let (resources, spans) = all_spans(porteiro, seen).await;
        assert_eq!(spans.len(), want, "{spans:?}");
        for span in &spans {
            assert_eq!(span.name, "/json");
            assert_eq!(span.attribute("porteiro.domain"), "d");
            assert!(span.parent_span_id.is_empty());
        }
        if let Some(resource) = resources.first() {
            let of = |key| attribute(&resource.attributes, key);
            assert_eq!(
                (of("service.name"), of("service.namespace")),
                ("porteiro".into(), "edge".into())
            );
        }
    }
}

/// Eight calls, and how many spans of them have arrived.
async fn spans_of_eight(
    environment: &[(&str, &str)],
    seen: mpsc::Receiver<otlp::ExportRequest>,
) -> usize {
    let mut porteiro = Serving::listening(&[], environment);
    porteiro.line_with("rules loaded");
    let http: SocketAddr = porteiro.http.parse().unwrap();
    for _ in 0..8 {
        let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]}]}"#;
        serving::http(http, "POST", "/json", body).await;
    }
    let (_, spans) = all_spans(porteiro, seen).await;
    assert!(spans.iter().all(|span| span.name == "/json"), "{spans:?}");
    spans.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_go_over_http_when_the_reference_would_send_them_so() {
    let (at, seen) = http_collector(None).await;
    let environment = [
        ("TRACING_ENABLED", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{at}")),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Basic%20YTpi%3D",
        ),
    ];
    assert_eq!(spans_of_eight(&environment, seen).await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_go_over_https_to_whom_the_roots_of_the_system_know() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, authority.pem()).unwrap();
    for (signed_by, want) in [(&authority, 8), (&stranger, 0)] {
        let pair = signed_by.sign(&["localhost"]);
        let (at, seen) = http_collector(Some(pair.server())).await;
        let environment = [
            (
                "PORTEIRO_OTLP",
                &*format!("https://localhost:{}", at.port()),
            ),
            ("PORTEIRO_OTLP_PROTOCOL", "http/protobuf"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Basic%20YTpi%3D",
            ),
            ("SSL_CERT_FILE", roots.to_str().unwrap()),
        ];
        assert_eq!(spans_of_eight(&environment, seen).await, want);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_costs_nothing_but_spans() {
    for protocol in ["grpc", "http/protobuf"] {
        dead_collector(protocol).await;
    }
}

async fn dead_collector(protocol: &str) {
    // Nobody listens there.
    let file = File::new("spans-dead", RULES);
    let args = [
        "--config",
        file.path(),
        "--otlp",
        "http://127.0.0.1:1",
        "--otlp-protocol",
        protocol,
    ];
    let mut porteiro = Serving::listening(&args, &[]);
    porteiro.line_with("rules loaded");
    let channel = channel(&porteiro).await;
    let mut rls = RateLimitServiceClient::new(channel);
    for _ in 0..20 {
        within(rls.should_rate_limit(ask("k", "ann")))
            .await
            .unwrap();
    }
    porteiro.line_with("spans did not reach the collector");
    let admin: SocketAddr = porteiro.admin.parse().unwrap();
    let (_, _, page) = serving::http(admin, "GET", "/metrics", "").await;
    let failed = page
        .lines()
        .find_map(|line| line.strip_prefix("porteiro_spans_total{outcome=\"failed\"} "));
    assert!(failed.is_some_and(|count| count != "0"), "{page}");
}
