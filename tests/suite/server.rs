//! The process from outside: doors, health, reflection, drain, age, bounds.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use porteiro::{
    api::wire::Asked,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
    },
    server::{Load, Loaded, Options, Stopped, Transport, noop::Noop},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Response, Status, Streaming, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

use crate::{
    held::Held,
    serving::{TestServer, ask, bytes, code, eventually, http, options, within},
};

const THREE: &str =
    "domain: d\ndescriptors:\n- key: user\n  rate_limit: {unit: minute, requests_per_unit: 3}\n";

// --- answers -----------------------------------------------------------------------------------

#[tokio::test]
async fn the_fourth_of_three_is_over_and_the_next_minute_is_fresh() {
    let (server, clock) = TestServer::with_rules(THREE, options()).await;
    let mut client = server.client().await;
    let mut codes = Vec::new();
    for _ in 0..4 {
        let answer = client.should_rate_limit(ask("d", "user", "a")).await;
        codes.push(code(answer.unwrap().get_ref()));
    }
    assert_eq!(codes, ["OK", "OK", "OK", "OVER_LIMIT"]);
    clock.advance(porteiro::model::time::Span::from_secs(60));
    let answer = client.should_rate_limit(ask("d", "user", "a")).await;
    assert_eq!(code(answer.unwrap().get_ref()), "OK");
}

#[tokio::test]
async fn json_answers_with_the_status_codes_of_the_reference() {
    let (server, _clock) = TestServer::with_rules(THREE, options()).await;
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    // The method is not looked at.
    for method in ["POST", "GET", "PUT"] {
        let (status, head, answer) = http(server.http, method, "/json", body).await;
        assert_eq!(status, 200);
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(answer.contains(r#""overallCode":"OK""#), "{answer}");
    }
    let (status, _, answer) = http(server.http, "POST", "/json", body).await;
    assert_eq!(status, 429);
    assert!(answer.contains(r#""overallCode":"OVER_LIMIT""#), "{answer}");
    for wrong in [
        "",
        "}",
        r#"{"domain":"d","no_such_field":1}"#,
        r#"{"domain":""}"#,
    ] {
        let (status, head, _) = http(server.http, "POST", "/json", wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(head.contains("content-type: text/plain"), "{head}");
    }
    let huge = format!(r#"{{"domain":"{}"}}"#, "d".repeat(300_000));
    assert_eq!(http(server.http, "POST", "/json", &huge).await.0, 413);
}

#[tokio::test]
async fn admin_is_not_public_and_public_has_no_admin() {
    let server = TestServer::start(Noop, options()).await;
    for path in ["/metrics", "/rules", "/log-level", "/"] {
        assert_eq!(http(server.http, "GET", path, "").await.0, 404, "{path}");
        assert_eq!(http(server.admin, "GET", path, "").await.0, 200, "{path}");
    }
    assert_eq!(http(server.admin, "GET", "/json", "").await.0, 404);
    let (status, _, text) = http(server.metrics, "GET", "/metrics", "").await;
    assert_eq!(status, 200);
    assert!(text.contains("of_the_engine 1"), "{text}");
    assert!(text.contains("porteiro_connections_open"), "{text}");
    assert_eq!(http(server.metrics, "GET", "/rules", "").await.0, 404);
}

#[tokio::test]
async fn the_log_level_can_be_changed() {
    let server = TestServer::start(Noop, options()).await;
    assert_eq!(
        http(server.admin, "GET", "/log-level", "").await.2,
        "info\n"
    );
    assert_eq!(http(server.admin, "PUT", "/log-level", "WARN").await.0, 200);
    assert_eq!(
        http(server.admin, "GET", "/log-level", "").await.2,
        "warn\n"
    );
    assert_eq!(http(server.admin, "PUT", "/log-level", "loud").await.0, 400);
}

// --- health ------------------------------------------------------------------------------------

async fn check(server: &TestServer, name: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(server.channel().await);
    let request = HealthCheckRequest {
        service: name.to_owned(),
    };
    let answer = client
        .check(request)
        .await
        .map_err(|status| status.code())?;
    Ok(answer.get_ref().status())
}

/// A watch whose first answer, that the server serves, has come.
async fn watch_serving(server: &TestServer) -> Streaming<HealthCheckResponse> {
    let request = HealthCheckRequest {
        service: "ratelimit".to_owned(),
    };
    let mut client = HealthClient::new(server.channel().await);
    let mut watch = client.watch(request).await.unwrap().into_inner();
    let first = watch.next().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    watch
}

#[tokio::test]
async fn health_is_told_everywhere_and_turns_at_the_first_signal() {
    let waiting = Options {
        drain_delay: Duration::from_hours(1),
        ..options()
    };
    let mut server = TestServer::start(Noop, waiting).await;
    for name in ["", "ratelimit"] {
        assert_eq!(check(&server, name).await, Ok(ServingStatus::Serving));
    }
    assert_eq!(check(&server, "other").await, Err(Code::NotFound));
    let (status, _, text) = http(server.http, "GET", "/healthcheck", "").await;
    assert_eq!((status, text.as_str()), (200, "OK"));
    assert_eq!(http(server.http, "GET", "/readyz", "").await.0, 200);

    let mut watch = watch_serving(&server).await;

    server.stop();
    let second = within(watch.next()).await.unwrap().unwrap();
    assert_eq!(second.status(), ServingStatus::NotServing);
    for name in ["", "ratelimit"] {
        assert_eq!(check(&server, name).await, Ok(ServingStatus::NotServing));
    }
    let (status, _, text) = http(server.http, "GET", "/healthcheck", "").await;
    assert_eq!((status, text.as_str()), (500, ""));
    let (status, _, text) = http(server.http, "GET", "/readyz", "").await;
    assert_eq!((status, text.as_str()), (503, "not ready: stopping\n"));
    assert_eq!(http(server.http, "GET", "/livez", "").await.0, 200);
    // Not ready, but whoever comes is served: that is what the delay is for.
    let mut client = server.client().await;
    assert!(client.should_rate_limit(ask("d", "k", "v")).await.is_ok());

    server.hurry();
    server.ended().await;
}

#[tokio::test]
async fn a_watch_of_health_ends_and_does_not_hold_its_connection() {
    let at_once = Options {
        drain_delay: Duration::ZERO,
        ..options()
    };
    let mut server = TestServer::start(Noop, at_once).await;
    let mut watch = watch_serving(&server).await;
    server.stop();
    let second = within(watch.next()).await.unwrap().unwrap();
    assert_eq!(second.status(), ServingStatus::NotServing);
    let end = within(watch.next()).await;
    assert!(end.is_none(), "{end:?}");
    assert_eq!(server.ended().await, Stopped::Drained);
}

#[tokio::test]
async fn a_failed_load_is_visible_and_changes_no_readiness() {
    let loads = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&loads);
    let load: Load = Arc::new(move || match count.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(Loaded {
            domains: 2,
            ..Loaded::default()
        }),
        _ => Ok(Loaded {
            domains: 2,
            rules: 0,
            findings: vec!["a.yaml:3:1: error: what".to_owned()],
            revision: "0123456789abcdef".into(),
        }),
    });
    let server = TestServer::start_loading(Noop, load, options()).await;
    let (status, _, _) = http(server.admin, "POST", "/reload", "").await;
    assert_eq!(status, 422);
    let (status, _, text) = http(server.http, "GET", "/readyz", "").await;
    assert_eq!(status, 200);
    assert!(text.contains("a.yaml:3:1"), "{text}");
    assert_eq!(http(server.http, "GET", "/healthcheck", "").await.0, 200);
    let (_, _, rules) = http(server.admin, "GET", "/rules", "").await;
    let rules: serde_json::Value = serde_json::from_str(&rules).unwrap();
    assert_eq!(rules["loads"]["failed"], 1);
    assert_eq!(rules["loads"]["succeeded"], 1);
    assert_eq!(rules["loads"]["problems"][0], "a.yaml:3:1: error: what");
    assert_eq!(server.reloads.so_far().failed, 1);
    let (_, _, page) = http(server.admin, "GET", "/metrics", "").await;
    assert!(page.contains("\nporteiro_rules_refused 1\n"), "{page}");
}

// --- reflection --------------------------------------------------------------------------------

#[tokio::test]
async fn reflection_lists_and_describes_every_service() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let server = TestServer::start(Noop, options()).await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let ask = |message| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    };
    let mut names = BTreeSet::new();
    let list = ask(MessageRequest::ListServices(String::new()));
    let answers = client
        .server_reflection_info(tokio_stream::once(list))
        .await;
    let answer = answers.unwrap().into_inner().next().await.unwrap().unwrap();
    if let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response {
        names.extend(list.service.into_iter().map(|service| service.name));
    }
    for name in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "porteiro.v1.LimiterService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.contains(name), "{names:?}");
        let describe = ask(MessageRequest::FileContainingSymbol(name.to_owned()));
        let answers = client
            .server_reflection_info(tokio_stream::once(describe))
            .await;
        let answer = answers.unwrap().into_inner().next().await.unwrap().unwrap();
        assert!(
            matches!(
                answer.message_response,
                Some(MessageResponse::FileDescriptorResponse(_))
            ),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn the_older_reflection_answers_too() {
    use tonic_reflection::pb::v1alpha::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let server = TestServer::start(Noop, options()).await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = client
        .server_reflection_info(tokio_stream::once(list))
        .await;
    let answer = answers.unwrap().into_inner().next().await.unwrap().unwrap();
    assert!(matches!(
        answer.message_response,
        Some(MessageResponse::ListServicesResponse(_))
    ));
}

// --- stop and age ------------------------------------------------------------------------------

#[tokio::test]
async fn a_call_in_flight_is_answered_before_the_end() {
    let held = Held::new();
    let mut server = TestServer::start(held.clone(), options()).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.should_rate_limit(ask("d", "k", "v")).await });
    held.asked.notified().await;
    server.stop();
    // The door is closed for new connections while the old one is finished.
    let at = server.grpc;
    within(async { while TcpStream::connect(at).await.is_ok() {} }).await;
    // Those of the loop above have said nothing and are let go.
    eventually("one left", || {
        server.stats.open().iter().sum::<usize>() == 1
    })
    .await;
    held.go.add_permits(1);
    assert_eq!(code(within(call).await.unwrap().unwrap().get_ref()), "OK");
    assert_eq!(server.ended().await, Stopped::Drained);
}

#[tokio::test]
async fn the_deadline_cuts_and_says_how_many() {
    let held = Held::new();
    let hasty = Options {
        drain_deadline: Duration::from_millis(1),
        ..options()
    };
    let mut server = TestServer::start(held.clone(), hasty).await;
    let mut client = server.client().await;
    let call = tokio::spawn(async move { client.should_rate_limit(ask("d", "k", "v")).await });
    held.asked.notified().await;
    server.stop();
    assert_eq!(server.ended().await, Stopped::DeadlinePassed { left: 1 });
    let status = within(call).await.unwrap().unwrap_err();
    assert_ne!(status.code(), Code::Ok);
}

#[tokio::test]
async fn a_second_signal_does_not_wait() {
    let held = Held::new();
    let mut server = TestServer::start(held.clone(), options()).await;
    let mut client = server.client().await;
    tokio::spawn(async move { client.should_rate_limit(ask("d", "k", "v")).await });
    held.asked.notified().await;
    server.stop();
    server.hurry();
    assert_eq!(server.ended().await, Stopped::DeadlinePassed { left: 1 });
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_the_end() {
    let mut server = TestServer::start(Noop, options()).await;
    let mut client = server.client().await;
    client.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    // One that has said nothing yet is let go too.
    let _silent = TcpStream::connect(server.grpc).await.unwrap();
    eventually("two open", || {
        server.stats.open().iter().sum::<usize>() == 2
    })
    .await;
    server.stop();
    assert_eq!(server.ended().await, Stopped::Drained);
}

#[tokio::test]
async fn old_connections_leave_and_no_call_is_lost() {
    let short = Options {
        transport: Transport {
            max_age: Some(Duration::from_millis(5)),
            ..Transport::default()
        },
        ..options()
    };
    let counted = Counted::default();
    let server = TestServer::start(counted.clone(), short).await;
    // Reconnects by itself, as Envoy does.
    let mut client = server.client().await;
    let mut answered = 0;
    while aged(&server).await < 10 {
        match within(client.should_rate_limit(ask("d", "k", "v"))).await {
            Ok(_) => answered += 1,
            // The client chose the old connection at the moment it ended, and says that it did
            // not send the call.
            Err(status) if status.message() == "operation was canceled" => {}
            Err(status) => panic!("call {answered} was lost: {status}"),
        }
    }
    assert!(answered > 0);
    assert_eq!(counted.0.load(Ordering::SeqCst), answered);
}

/// Counts what it was asked.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU64>);

impl Asked for Counted {}

#[async_trait]
impl RateLimitService for Counted {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Noop.should_rate_limit(request).await
    }
}

async fn aged(server: &TestServer) -> u64 {
    let (_, _, page) = http(server.admin, "GET", "/metrics", "").await;
    let line = page.lines().find_map(|line| {
        line.strip_prefix("porteiro_connections_aged_total ")?
            .parse()
            .ok()
    });
    line.expect("the counter")
}

// --- doors -------------------------------------------------------------------------------------

#[tokio::test]
async fn connections_go_to_the_worker_with_the_fewest() {
    let server = TestServer::start(Noop, options()).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = server.client().await;
        client.should_rate_limit(ask("d", "k", "v")).await.unwrap();
        clients.push(client);
    }
    assert_eq!(server.stats.open(), [3, 3]);
    // Handed out in turn: these were all on the first worker.
    for index in [4, 2, 0] {
        drop(clients.remove(index));
    }
    eventually("closed", || server.stats.open() == [0, 3]).await;
    for want in [[1, 3], [2, 3], [3, 3]] {
        let mut client = server.client().await;
        client.should_rate_limit(ask("d", "k", "v")).await.unwrap();
        assert_eq!(server.stats.open(), want);
        clients.push(client);
    }
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_the_others_go_on() {
    let two = Options {
        transport: Transport {
            max_connections: 2,
            ..Transport::default()
        },
        ..options()
    };
    let server = TestServer::start(Noop, two).await;
    let mut first = server.client().await;
    first.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    let mut second = server.client().await;
    second.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    let mut third = TcpStream::connect(server.grpc).await.unwrap();
    let end = within(third.read(&mut [0; 1])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    first.should_rate_limit(ask("d", "k", "v")).await.unwrap();
    drop(second);
    eventually("room", || server.stats.open().iter().sum::<usize>() == 1).await;
    let mut fourth = server.client().await;
    fourth.should_rate_limit(ask("d", "k", "v")).await.unwrap();
}

#[tokio::test]
async fn http_1_on_the_grpc_port_is_told_where_to_go() {
    let server = TestServer::start(Noop, options()).await;
    let request = b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    let answer = String::from_utf8(bytes(server.grpc, request).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains(&server.http.to_string()), "{answer}");
    let mut client = server.client().await;
    assert!(client.should_rate_limit(ask("d", "k", "v")).await.is_ok());
}

#[tokio::test]
async fn whatever_is_sent_the_next_call_is_answered() {
    let server = TestServer::start(Noop, options()).await;
    let mut client = server.client().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..64 {
        let mut noise: Vec<u8> = (0..512)
            .map(|_| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                seed.to_le_bytes()[0]
            })
            .collect();
        if round % 2 == 0 {
            noise.splice(0..0, preface.iter().copied());
        }
        let mut stream = TcpStream::connect(server.grpc).await.unwrap();
        let _ = stream.write_all(&noise).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = within(stream.read_to_end(&mut rest)).await;
    }
    assert!(client.should_rate_limit(ask("d", "k", "v")).await.is_ok());
    // Two workers, neither of them hurt.
    for _ in 0..2 {
        let mut client = server.client().await;
        assert!(client.should_rate_limit(ask("d", "k", "v")).await.is_ok());
    }
}

#[tokio::test]
async fn who_says_nothing_is_let_go() {
    let impatient = Options {
        transport: Transport {
            handshake_timeout: Duration::from_millis(5),
            ..Transport::default()
        },
        http: porteiro::server::HttpLimits {
            header_timeout: Duration::from_millis(5),
            ..Default::default()
        },
        ..options()
    };
    let server = TestServer::start(Noop, impatient).await;
    for (door, begin) in [
        (server.grpc, &b"PRI * H"[..]),
        (server.grpc, b""),
        (server.http, b"GET / HTT"),
    ] {
        let mut stream = TcpStream::connect(door).await.unwrap();
        stream.write_all(begin).await.unwrap();
        let end = within(stream.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "closed, not reset: {end:?}");
    }
}

// --- bounds ------------------------------------------------------------------------------------

#[tokio::test]
async fn a_message_beyond_the_bound_is_named() {
    let (server, _clock) = TestServer::with_rules(THREE, options()).await;
    let mut client = server.client().await;
    let status = client
        .should_rate_limit(ask("d", "user", &"v".repeat(1 << 20)))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("65536"), "{}", status.message());
    let answer = client.should_rate_limit(ask("d", "user", "a")).await;
    assert_eq!(code(answer.unwrap().get_ref()), "OK");
    // The same bound, in tonic's part.
    let mut health = HealthClient::new(server.channel().await);
    let request = HealthCheckRequest {
        service: "x".repeat(1 << 20),
    };
    let status = health.check(request).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status.message().contains("max-message"),
        "{}",
        status.message()
    );
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let server = TestServer::start(Noop, options()).await;
    for path in [
        "/envoy.service.ratelimit.v3.RateLimitService/Other",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/x",
    ] {
        let mut client = tonic::client::Grpc::new(server.channel().await);
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        let path = path.parse().unwrap();
        let status = client
            .unary(Request::new(ask("d", "k", "v")), path, codec)
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    }
}
