//! TLS at the doors: who comes in, what the others are told, and certificates that change under way.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::rt::TokioIo;
use porteiro::{
    api::privileges::Privileges,
    model::{secret::Secret, time::Timestamp},
    proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient,
    server::{Doors, Options, TlsOptions, noop::Noop},
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::{
    certificates::{Authority, Folder, Pair},
    serving::{TestServer, ask, bytes, eventually, http, options, within},
    support::service,
};

/// TLS at every door.
const EVERYWHERE: Doors = Doors {
    grpc: true,
    http: true,
    admin: true,
    metrics: true,
};

/// TLS for gRPC alone.
const GRPC: Doors = Doors {
    grpc: true,
    http: false,
    admin: false,
    metrics: false,
};

fn with_tls(folder: &Folder, doors: Doors, change: impl FnOnce(&mut TlsOptions)) -> Options {
    let mut tls = TlsOptions {
        certificate: folder.certificate(),
        key: folder.key(),
        client_roots: None,
        client_names: Vec::new(),
        doors,
    };
    change(&mut tls);
    Options {
        tls: Some(tls),
        ..options()
    }
}

async fn connect(
    to: SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(to).await?;
    let name = ServerName::try_from("porteiro.test").unwrap();
    within(TlsConnector::from(config).connect(name, tcp)).await
}

/// The DER of the certificate that the server shows.
async fn shown(to: SocketAddr, config: Arc<ClientConfig>) -> Vec<u8> {
    let stream = connect(to, config).await.unwrap();
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    chain[0].as_ref().to_vec()
}

/// Opens TLS connections for tonic.
#[derive(Clone)]
struct Connector(SocketAddr, Arc<ClientConfig>);

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self(to, config) = self.clone();
        Box::pin(async move { Ok(TokioIo::new(connect(to, config).await?)) })
    }
}

async fn client(
    to: SocketAddr,
    config: Arc<ClientConfig>,
) -> Result<RateLimitServiceClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::from_static("http://porteiro.test");
    let channel = within(endpoint.connect_with_connector(Connector(to, config))).await?;
    Ok(RateLimitServiceClient::new(channel))
}

/// Whether a call is answered over a connection of its own.
async fn is_answered(to: SocketAddr, config: Arc<ClientConfig>) -> bool {
    match client(to, config).await {
        Ok(mut client) => client.should_rate_limit(ask("d", "k", "v")).await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn every_door_speaks_tls_and_each_its_protocol() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.sign(&["porteiro.test"]), "");
    let server = TestServer::start(Noop, with_tls(&folder, EVERYWHERE, |_| {})).await;
    assert!(is_answered(server.grpc, authority.client(None, &["h2"])).await);
    // Who asks for no protocol gets the one of the door.
    assert!(is_answered(server.grpc, authority.client(None, &[])).await);
    for (door, path) in [
        (server.http, "/readyz"),
        (server.admin, "/rules"),
        (server.metrics, "/metrics"),
    ] {
        let config = authority.client(None, &["h2", "http/1.1"]);
        let mut stream = connect(door, config).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{path}");
    }
    // A protocol that is not spoken there.
    let other = authority.client(None, &["http/1.1"]);
    assert!(connect(server.grpc, other).await.is_err());
}

#[tokio::test]
async fn plain_clients_are_told_in_their_language() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.sign(&["porteiro.test"]), "");
    let server = TestServer::start(Noop, with_tls(&folder, EVERYWHERE, |_| {})).await;
    for door in [server.grpc, server.http] {
        let answer = bytes(door, b"POST /json HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("wants TLS"), "{answer}");
    }
    let answer = bytes(
        server.grpc,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    )
    .await;
    // Empty SETTINGS, then GOAWAY.
    assert_eq!(answer[..9], *b"\0\0\0\x04\0\0\0\0\0");
    assert_eq!(answer[12], 7);
    assert!(answer.ends_with(b"this port wants TLS"), "{answer:?}");
    // What a gRPC client makes of it.
    let mut client = server.client().await;
    let status = client
        .should_rate_limit(ask("d", "k", "v"))
        .await
        .unwrap_err();
    assert!(format!("{status:?}").contains("wants TLS"), "{status:?}");
    // Noise, and silence.
    assert!(bytes(server.grpc, &[0, 1, 2]).await.is_empty());
    assert!(is_answered(server.grpc, authority.client(None, &["h2"])).await);
}

#[tokio::test]
async fn only_certificates_of_the_given_roots_with_an_allowed_name_come_in() {
    let (ours, clients, foreign) = (Authority::new(), Authority::new(), Authority::new());
    let folder = Folder::new(&ours.sign(&["porteiro.test"]), &clients.pem());
    let options = with_tls(&folder, GRPC, |tls| {
        tls.client_roots = Some(folder.roots());
        tls.client_names = vec!["envoy.test".to_owned(), "spiffe://test/envoy".to_owned()];
    });
    let server = TestServer::start(Noop, options).await;
    let enters =
        async |pair: Option<&Pair>| is_answered(server.grpc, ours.client(pair, &["h2"])).await;
    assert!(enters(Some(&clients.sign(&["envoy.test"]))).await);
    assert!(enters(Some(&clients.sign(&["x.test", "Envoy.Test"]))).await);
    assert!(enters(Some(&clients.sign(&["spiffe://test/envoy"]))).await);
    for (why, pair) in [
        ("no name of the list", clients.sign(&["other.test"])),
        ("a longer name", clients.sign(&["envoy.test.evil"])),
        ("a wildcard", clients.sign(&["*.test"])),
        ("another URI", clients.sign(&["spiffe://test/envoy/x"])),
        ("no name at all", clients.sign(&[])),
        ("expired", clients.sign_expired(&["envoy.test"])),
        ("a foreign root", foreign.sign(&["envoy.test"])),
        ("our own root", ours.sign(&["envoy.test"])),
    ] {
        assert!(!enters(Some(&pair)).await, "{why}");
    }
    assert!(!enters(None).await, "no certificate");
    // A client may try more than once.
    let failed = server.counter("porteiro_tls_handshakes_failed_total").await;
    assert!(failed >= 9, "{failed}");
    assert_eq!(
        server.counter("porteiro_connections_accepted_total").await,
        3
    );
}

#[tokio::test]
async fn only_the_privileged_may_refund_and_override() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.sign(&["porteiro.test"]), &authority.pem());
    let options = with_tls(&folder, GRPC, |tls| tls.client_roots = Some(folder.roots()));
    let token = Secret::new("a-token-of-the-tests");
    let privileges = Privileges {
        refunds: true,
        overrides: true,
        resets: true,
        names: vec!["billing.test".to_owned()],
        token: Some(token),
    };
    let rules =
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 9}\n";
    let files = BTreeMap::from([("rules.yaml".to_owned(), rules.to_owned())]);
    let service = service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000_000));
    let rls = service.rls.with_privileges(privileges.into());
    let server = TestServer::start(rls, options).await;
    let mut refund = ask("d", "k", "v");
    refund.descriptors[0].is_negative_hits = true;
    let mut change = ask("d", "k", "v");
    change.descriptors[0].limit = Some(RateLimitOverride {
        requests_per_unit: 1,
        unit: 4,
        ..RateLimitOverride::default()
    });
    let envoy = authority.client(Some(&authority.sign(&["envoy.test"])), &["h2"]);
    let billing = authority.client(Some(&authority.sign(&["billing.test"])), &["h2"]);
    let mut envoy = client(server.grpc, envoy).await.unwrap();
    let mut billing = client(server.grpc, billing).await.unwrap();
    for (special, word) in [(refund, "refunds"), (change, "overrides")] {
        let status = envoy.should_rate_limit(special.clone()).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status:?}");
        assert!(status.message().contains(word), "{status:?}");
        billing.should_rate_limit(special.clone()).await.unwrap();
        let mut shown = tonic::Request::new(special);
        let token = "Bearer a-token-of-the-tests".parse().unwrap();
        shown.metadata_mut().insert("authorization", token);
        envoy.should_rate_limit(shown).await.unwrap();
    }
    // What is not restricted is for everybody.
    envoy.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    // HTTP has neither here.
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"is_negative_hits":true}]}"#;
    let (status, _, text) = http(server.http, "POST", "/json", body).await;
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("restricted"), "{text}");
}

#[tokio::test]
async fn admin_with_a_token_asks_for_it() {
    let options = Options {
        admin_token: Some(Secret::new("a-token-of-the-tests")),
        ..options()
    };
    let server = TestServer::start(Noop, options).await;
    let (status, head, _) = http(server.admin, "GET", "/metrics", "").await;
    assert_eq!(status, 401);
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    assert_eq!(http(server.admin, "GET", "/readyz", "").await.0, 200);
    for (token, want) in [
        ("a-token-of-the-tests", "200"),
        ("a-token-of-the-test", "401"),
    ] {
        let request = format!(
            "GET /rules HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        let answer = bytes(server.admin, request.as_bytes()).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {want} ")), "{answer}");
    }
}

#[tokio::test]
async fn certificates_change_under_load_and_no_call_fails() {
    let authority = Authority::new();
    let first = authority.sign(&["porteiro.test"]);
    let folder = Folder::new(&first, "");
    let server = TestServer::start(Noop, with_tls(&folder, GRPC, |_| {})).await;
    let trusting = authority.client(None, &["h2"]);
    let to = server.grpc;
    let stop = Arc::new(AtomicBool::new(false));
    let (answered, renewed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    // One keeps its connection, the other opens a new one for each call.
    let keeping = {
        let (stop, answered, trusting) = (stop.clone(), answered.clone(), trusting.clone());
        tokio::spawn(async move {
            let mut client = client(to, trusting).await.unwrap();
            while !stop.load(Ordering::Relaxed) {
                client.should_rate_limit(ask("d", "k", "v")).await.unwrap();
                answered.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let renewing = {
        let (stop, renewed, trusting) = (stop.clone(), renewed.clone(), trusting.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let mut client = client(to, trusting.clone()).await.unwrap();
                client.should_rate_limit(ask("d", "k", "v")).await.unwrap();
                renewed.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let mut before = shown(to, trusting.clone()).await;
    for round in 0..5 {
        folder.replace(&authority.sign(&["porteiro.test"]));
        let now = within(async {
            loop {
                let now = shown(to, trusting.clone()).await;
                if now != before {
                    break now;
                }
            }
        })
        .await;
        before = now;
        let marks = (
            answered.load(Ordering::Relaxed),
            renewed.load(Ordering::Relaxed),
        );
        eventually("calls after the change", || {
            answered.load(Ordering::Relaxed) > marks.0 && renewed.load(Ordering::Relaxed) > marks.1
        })
        .await;
        assert!(
            !keeping.is_finished() && !renewing.is_finished(),
            "round {round}"
        );
    }
    stop.store(true, Ordering::Relaxed);
    keeping.await.unwrap();
    renewing.await.unwrap();
}

#[tokio::test]
async fn a_broken_certificate_changes_nothing_and_is_counted() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.sign(&["porteiro.test"]), "");
    let server = TestServer::start(Noop, with_tls(&folder, GRPC, |_| {})).await;
    let trusting = authority.client(None, &["h2"]);
    let before = shown(server.grpc, trusting.clone()).await;
    let refused = async |least: u64| {
        let wait = async {
            while server
                .counter("porteiro_tls_certificate_reloads_refused_total")
                .await
                < least
            {}
        };
        within(wait).await;
        assert_eq!(shown(server.grpc, trusting.clone()).await, before);
    };
    fs::write(folder.certificate(), "no certificate").unwrap();
    refused(1).await;
    // A key of another certificate.
    folder.replace(&Pair {
        key: authority.sign(&["porteiro.test"]).key,
        ..authority.sign(&["porteiro.test"])
    });
    refused(2).await;
    fs::remove_file(folder.key()).unwrap();
    refused(3).await;
    folder.replace(&authority.sign(&["porteiro.test"]));
    within(async { while shown(server.grpc, trusting.clone()).await == before {} }).await;
}

#[tokio::test]
async fn a_secret_of_kubernetes_is_swapped_as_one() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.sign(&["porteiro.test"]), "");
    let lay = |version: &str, pair: &Pair| {
        let path = folder.path().join(version);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("tls.crt"), &pair.certificate).unwrap();
        fs::write(path.join("tls.key"), &pair.key).unwrap();
    };
    lay("..1", &authority.sign(&["porteiro.test"]));
    lay("..2", &authority.sign(&["porteiro.test"]));
    symlink("..1", folder.path().join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        fs::remove_file(folder.path().join(name)).unwrap();
        symlink(format!("..data/{name}"), folder.path().join(name)).unwrap();
    }
    let server = TestServer::start(Noop, with_tls(&folder, GRPC, |_| {})).await;
    let trusting = authority.client(None, &["h2"]);
    let before = shown(server.grpc, trusting.clone()).await;
    symlink("..2", folder.path().join("..tmp")).unwrap();
    fs::rename(folder.path().join("..tmp"), folder.path().join("..data")).unwrap();
    within(async { while shown(server.grpc, trusting.clone()).await == before {} }).await;
}

#[tokio::test]
async fn handshakes_that_do_not_end_hold_up_nobody() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.sign(&["porteiro.test"]), "");
    let mut options = with_tls(&folder, GRPC, |_| {});
    options.transport.max_handshakes = 4;
    options.transport.handshake_timeout = std::time::Duration::from_millis(300);
    let server = TestServer::start(Noop, options).await;
    let config = authority.client(None, &["h2"]);
    let mut early = client(server.grpc, config.clone()).await.unwrap();
    early.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    // The first bytes of a hello, and then nothing.
    let mut silent = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(server.grpc).await.unwrap();
        stream.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
        silent.push(stream);
    }
    early.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    // Two at once because they are too many, four when their time is over.
    for stream in &mut silent {
        let end = within(stream.read_to_end(&mut Vec::new())).await;
        drop(end);
    }
    let ended = async {
        // Counted after they are closed.
        while server.counter("porteiro_tls_handshakes_failed_total").await < 4 {}
    };
    within(ended).await;
    assert_eq!(
        server.counter("porteiro_connections_refused_total").await,
        2
    );
    assert!(is_answered(server.grpc, config).await);
}

#[tokio::test]
async fn a_stop_waits_for_calls_over_tls_and_not_for_handshakes() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.sign(&["porteiro.test"]), "");
    let mut server = TestServer::start(Noop, with_tls(&folder, GRPC, |_| {})).await;
    let mut early = client(server.grpc, authority.client(None, &["h2"]))
        .await
        .unwrap();
    early.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    let _silent = TcpStream::connect(server.grpc).await.unwrap();
    server.stop();
    assert_eq!(server.ended().await, porteiro::server::Stopped::Drained);
}
