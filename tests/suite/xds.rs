//! Rules from a control plane: the program as a process, a small ADS server in the test.

use std::{fs, net::SocketAddr, path::Path};

use porteiro::proto::{
    envoy::service::discovery::v3::{
        DiscoveryRequest, DiscoveryResponse,
        aggregated_discovery_service_server::{
            AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
        },
    },
    ratelimit::config::ratelimit::v3::{
        RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
    },
};
use prost::Message as _;
use prost_types::Any;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::MetadataMap,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use crate::{process::Serving, serving};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Hands each stream to the test.
struct Plane {
    streams: mpsc::Sender<Stream>,
}

/// One stream of the client.
struct Stream {
    headers: MetadataMap,
    asked: Streaming<DiscoveryRequest>,
    answer: mpsc::Sender<Result<DiscoveryResponse, Status>>,
}

impl Stream {
    async fn next(&mut self) -> DiscoveryRequest {
        let asked = serving::within(self.asked.message()).await;
        asked.unwrap().expect("the stream goes on")
    }

    /// Sends a state of the world, and what the client says to it.
    async fn tell(&mut self, version: &str, nonce: &str, resources: Vec<Any>) -> DiscoveryRequest {
        let answer = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: TYPE_URL.to_owned(),
            nonce: nonce.to_owned(),
        };
        self.answer.send(Ok(answer)).await.unwrap();
        self.next().await
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Plane {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (answer, answers) = mpsc::channel(4);
        let stream = Stream {
            headers: request.metadata().clone(),
            asked: request.into_inner(),
            answer,
        };
        let gone = |_| Status::unavailable("the test is over");
        self.streams.send(stream).await.map_err(gone)?;
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// A control plane that listens; what it runs on, and its streams.
async fn plane(
    tls: Option<ServerTlsConfig>,
) -> (SocketAddr, mpsc::Receiver<Stream>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (streams, seen) = mpsc::channel(4);
    let service = AggregatedDiscoveryServiceServer::new(Plane { streams });
    let mut server = Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).unwrap();
    }
    let serving = server
        .add_service(service)
        .serve_with_incoming(TcpListenerStream::new(listener));
    let task = tokio::spawn(async { serving.await.unwrap() });
    (at, seen, task)
}

/// One domain with one limit per user and hour.
fn rules(domain: &str, unit: i32, requests_per_unit: u32) -> Any {
    let config = RateLimitConfig {
        name: format!("resource-{domain}"),
        domain: domain.to_owned(),
        descriptors: vec![RateLimitDescriptor {
            key: "user".to_owned(),
            rate_limit: Some(RateLimitPolicy {
                unit,
                requests_per_unit,
                ..RateLimitPolicy::default()
            }),
            ..RateLimitDescriptor::default()
        }],
    };
    Any {
        type_url: TYPE_URL.to_owned(),
        value: config.encode_to_vec(),
    }
}

const YEAR: i32 = RateLimitUnit::Year as i32;

/// The status of one call for a user.
async fn call(porteiro: &Serving, domain: &str, user: &str) -> u16 {
    let body = format!(
        r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"user","value":"{user}"}}]}}]}}"#
    );
    let at = porteiro.http.parse().unwrap();
    serving::http(at, "POST", "/json", &body).await.0
}

async fn get(at: &str, path: &str) -> (u16, String) {
    let (status, _, body) = serving::http(at.parse().unwrap(), "GET", path, "").await;
    (status, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_is_followed_and_told_what_became_of_its_rules() {
    let (at, mut streams, task) = plane(None).await;
    let url = at.to_string();
    let env = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str()),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a"),
        (
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "X-Token:secret",
        ),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1ms"),
        // Set side by side with the type, and without effect.
        ("RUNTIME_ROOT", "/nowhere"),
    ];
    let porteiro = Serving::listening(&[], &env);
    let mut stream = serving::within(streams.recv()).await.unwrap();
    assert_eq!(stream.headers.get("x-token").unwrap(), "secret");
    let first = stream.next().await;
    assert_eq!((&*first.version_info, &*first.response_nonce), ("", ""));
    assert_eq!(first.type_url, TYPE_URL);
    assert!(first.resource_names.is_empty());
    let node = first.node.unwrap();
    assert_eq!(node.id, "envoy-ratelimit");
    assert!(node.metadata.unwrap().fields.contains_key("zone"));
    assert_eq!(get(&porteiro.http, "/readyz").await.0, 503, "no rules yet");

    let world = vec![rules("one", YEAR, 1), rules("two", YEAR, 1)];
    let ack = stream.tell("7", "n1", world).await;
    assert_eq!((&*ack.version_info, &*ack.response_nonce), ("7", "n1"));
    assert_eq!(ack.error_detail, None);
    assert_eq!(get(&porteiro.http, "/readyz").await.0, 200);
    assert_eq!(call(&porteiro, "one", "ana").await, 200);
    assert_eq!(call(&porteiro, "one", "ana").await, 429);

    // One domain is broken: it keeps its rules, the other one moves on.
    let world = vec![rules("one", 99, 5), rules("two", YEAR, 2)];
    let nack = stream.tell("8", "n2", world).await;
    assert_eq!((&*nack.version_info, &*nack.response_nonce), ("7", "n2"));
    let detail = nack.error_detail.unwrap();
    assert_eq!(detail.code, i32::from(tonic::Code::InvalidArgument));
    assert!(
        detail.message.contains("xds:resource-one"),
        "{}",
        detail.message
    );
    assert_eq!(call(&porteiro, "one", "ana").await, 429);
    let two = [
        call(&porteiro, "two", "ana").await,
        call(&porteiro, "two", "ana").await,
        call(&porteiro, "two", "ana").await,
    ];
    assert_eq!(two, [200, 200, 429]);

    // What is no rule at all changes nothing, and is counted.
    let nonsense = Any {
        type_url: TYPE_URL.to_owned(),
        value: vec![0xff],
    };
    let nack = stream.tell("9", "n3", vec![nonsense]).await;
    assert_eq!((&*nack.version_info, &*nack.response_nonce), ("7", "n3"));
    assert!(nack.error_detail.unwrap().message.starts_with("resource 0"));
    let metrics = get(&porteiro.admin, "/metrics").await.1;
    assert!(
        metrics.contains("\nratelimit_service_config_load_error 2\n"),
        "{metrics}"
    );
    assert!(metrics.contains("\nporteiro_xds_connected 1\n"));

    // A domain that is not in the world is gone; what was used stays used, refused hits included.
    let ack = stream.tell("10", "n4", vec![rules("one", YEAR, 4)]).await;
    assert_eq!((&*ack.version_info, ack.error_detail), ("10", None));
    assert_eq!(call(&porteiro, "two", "ana").await, 200);
    assert_eq!(call(&porteiro, "one", "ana").await, 200);
    assert_eq!(call(&porteiro, "one", "ana").await, 429);

    // The control plane restarts and counts from 1 again.
    drop(stream);
    let mut stream = serving::within(streams.recv()).await.unwrap();
    let first = stream.next().await;
    assert_eq!((&*first.version_info, &*first.response_nonce), ("", ""));
    assert_eq!(call(&porteiro, "one", "ana").await, 429, "the rules stayed");
    let ack = stream.tell("1", "m1", vec![rules("one", YEAR, 7)]).await;
    assert_eq!((&*ack.version_info, &*ack.response_nonce), ("1", "m1"));
    assert_eq!(call(&porteiro, "one", "ana").await, 200);
    drop(stream);
    task.abort();
    porteiro.signal("-TERM");
    let (code, log) = porteiro.end();
    assert_eq!(code, Some(0), "{log}");
}

/// An authority, and a certificate with its key that it signed.
struct Signed {
    authority: String,
    certificate: String,
    key: String,
}

fn signed(name: &str) -> Signed {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    Signed {
        authority: authority.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_show_certificates() {
    let (theirs, ours) = (signed("envoy-gateway"), signed("porteiro"));
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&theirs.certificate, &theirs.key))
        .client_ca_root(Certificate::from_pem(&ours.authority));
    let (at, mut streams, _task) = plane(Some(tls)).await;
    let folder = tempfile::tempdir().unwrap();
    let url = at.to_string();
    let certificate = file(folder.path(), "tls.crt", &ours.certificate);
    let key = file(folder.path(), "tls.key", &ours.key);
    let authority = file(folder.path(), "ca.crt", &theirs.authority);
    let env = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str()),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", certificate.as_str()),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key.as_str()),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", authority.as_str()),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
        ("PORTEIRO_XDS_RETRY", "1ms"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let porteiro = Serving::listening(&[], &env);
    let mut stream = serving::within(streams.recv()).await.unwrap();
    stream.next().await;
    assert_eq!(
        get(&porteiro.http, "/healthcheck").await.0,
        200,
        "asked to start without rules"
    );
    let ack = stream.tell("1", "n", vec![rules("one", YEAR, 1)]).await;
    assert_eq!(ack.error_detail, None);
    assert_eq!(call(&porteiro, "one", "ana").await, 200);
    assert_eq!(call(&porteiro, "one", "ana").await, 429);

    // A control plane that somebody else signed is not believed.
    let mut stranger = Serving::listening(
        &["--xds-server", &url, "--xds-tls", "--xds-ca", &certificate],
        &[
            ("PORTEIRO_XDS_CERT", &*certificate),
            ("PORTEIRO_XDS_KEY", &*key),
        ],
    );
    let line = stranger.line_with("control plane: ");
    assert!(line.contains("certificate"), "{line}");
    for porteiro in [porteiro, stranger] {
        porteiro.signal("-TERM");
        porteiro.end();
    }
}
