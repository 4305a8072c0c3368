//! `porteiro.v1.LimiterService` over the wire, mostly through the client that ships.

use std::time::Duration;

use porteiro::{
    client::{Ask, Client, ClientError, Patience},
    model::time::Span,
    proto::porteiro::v1::{
        AcquireRequest, AcquireResponse, Cause, Holder, LeaseEnd, ReleaseRequest, ResetRequest,
        SessionRequest,
        acquire_response::Decision,
        limiter_service_client::LimiterServiceClient,
        release_result,
        session_request::{Goodbye, Message as Say, Open},
        session_response::{Message as Said, revoked::By},
    },
    server::{Options, Stopped},
};
use tokio::{sync::mpsc, task, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::{
    serving::{TestServer, ask, code, options},
    support::Service,
};

const RULES: &str = "
domain: edge
descriptors:
- key: upstream
  concurrency: {limit: 2, lease_ttl: 10s}
- key: tenant
  rate_limit: {unit: minute, requests_per_unit: 5}
";
const PATIENCE: Duration = Duration::from_secs(20);

async fn start() -> (TestServer, Service, Client) {
    let (server, service) = TestServer::with_limiter(RULES).await;
    let client = Client::connect(&format!("http://{}", server.grpc))
        .await
        .unwrap();
    let patience = Patience {
        tries: 1,
        ..Patience::default()
    };
    (server, service, client.with_patience(patience))
}

fn search() -> Ask {
    Ask::new("edge").item([("upstream", "search")])
}

fn in_flight(service: &Service) -> u64 {
    let limits = service.engine.leases().limits(service.clock.now());
    limits
        .iter()
        .flat_map(|(_, limits)| limits)
        .map(|limit| limit.in_flight)
        .sum()
}

/// Waits for a message that is on its way through the kernel.
async fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let waiting = async {
        while !happened() {
            task::yield_now().await;
        }
    };
    assert!(
        timeout(PATIENCE, waiting).await.is_ok(),
        "{what} did not happen"
    );
}

#[tokio::test]
async fn permits_come_back_when_they_are_dropped() {
    let (_server, service, client) = start().await;
    let first = client.acquire(search()).await.unwrap();
    let second = client.acquire(search()).await.unwrap();
    assert_eq!(in_flight(&service), 2);
    assert!(second.answer().fence > first.answer().fence);
    let refused = client.acquire(search()).await.unwrap_err();
    let ClientError::Refused {
        cause,
        retry_after,
        http_status,
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!((cause, http_status), (Cause::ConcurrencyLimit, 429));
    assert!(retry_after.is_some_and(|wait| wait > Duration::ZERO));
    first.succeed();
    until("the release", || in_flight(&service) == 1).await;
    drop(second);
    until("the release", || in_flight(&service) == 0).await;
}

#[tokio::test]
async fn what_can_never_pass_is_not_tried_again() {
    let (_server, _service, client) = start().await;
    let ask = Ask::new("edge").permits([("upstream", "search")], 3);
    assert!(matches!(client.acquire(ask).await, Err(ClientError::Never)));
}

#[tokio::test]
async fn a_refusal_by_one_limit_costs_nothing_at_the_others() {
    let (_server, service, client) = start().await;
    let both = || search().item([("tenant", "acme")]);
    let held = [
        client.acquire(both()).await.unwrap(),
        client.acquire(both()).await.unwrap(),
    ];
    for _ in 0..10 {
        assert!(client.acquire(both()).await.is_err());
    }
    drop(held);
    until("both releases", || in_flight(&service) == 0).await;
    // Five a minute, two of them used: three are left.
    for _ in 0..3 {
        client.acquire(both()).await.unwrap().succeed();
        until("the release", || in_flight(&service) == 0).await;
    }
    let refused = client.acquire(both()).await.unwrap_err();
    assert!(
        matches!(
            refused,
            ClientError::Refused {
                cause: Cause::RateLimit,
                ..
            }
        ),
        "{refused:?}"
    );
    assert_eq!(in_flight(&service), 0);
}

#[tokio::test]
async fn a_waiting_request_is_served_when_a_permit_comes_back() {
    let (_server, service, client) = start().await;
    let first = client.acquire(search()).await.unwrap();
    let _second = client.acquire(search()).await.unwrap();
    let patient = client.clone();
    let third = task::spawn(async move {
        patient
            .acquire(search().max_wait(Duration::from_mins(1)))
            .await
    });
    let waiting = || {
        let limits = service.engine.leases().limits(service.clock.now());
        limits
            .iter()
            .flat_map(|(_, limits)| limits)
            .any(|limit| limit.waiters == 1)
    };
    until("the wait", waiting).await;
    service.clock.advance(Span::from_millis(250));
    first.succeed();
    let third = timeout(PATIENCE, third).await.unwrap().unwrap().unwrap();
    assert_eq!(third.answer().waited.unwrap().nanos, 250_000_000);
    assert_eq!(in_flight(&service), 2);
}

#[tokio::test]
async fn one_request_id_is_one_lease() {
    let (server, service, _client) = start().await;
    let mut raw = LimiterServiceClient::connect(format!("http://{}", server.grpc))
        .await
        .unwrap();
    let request = AcquireRequest {
        request_id: b"r1".to_vec(),
        holder: Some(Holder {
            id: "worker".into(),
            instance: "1".into(),
        }),
        ..message(&search())
    };
    let first = raw.acquire(request.clone()).await.unwrap().into_inner();
    let again = raw.acquire(request.clone()).await.unwrap().into_inner();
    assert_eq!(
        (first.decision(), again.decision()),
        (Decision::Granted, Decision::Replayed)
    );
    assert_eq!(first.lease_id, again.lease_id);
    let other = AcquireRequest {
        items: [request.items.clone(), request.items.clone()].concat(),
        ..request.clone()
    };
    let conflict = raw.acquire(other).await.unwrap().into_inner();
    assert_eq!(conflict.decision(), Decision::Conflict);
    let mut release = async |id: &str, holder: &str| {
        let end = LeaseEnd {
            lease_id: id.to_owned(),
            ..LeaseEnd::default()
        };
        let holder = Some(Holder {
            id: holder.to_owned(),
            instance: String::new(),
        });
        let request = ReleaseRequest {
            leases: vec![end],
            holder,
        };
        raw.release(request).await.unwrap().into_inner().results[0].status()
    };
    assert_eq!(
        release(&first.lease_id, "somebody else").await,
        release_result::Status::NotHolder
    );
    assert_eq!(
        release("no id at all", "worker").await,
        release_result::Status::Unknown
    );
    assert_eq!(
        release(&first.lease_id, "worker").await,
        release_result::Status::Released
    );
    assert_eq!(
        release(&first.lease_id, "worker").await,
        release_result::Status::AlreadyReleased
    );
    assert_eq!(in_flight(&service), 0);
    let late = raw.acquire(request).await.unwrap().into_inner();
    assert_eq!(late.decision(), Decision::Ended);
}

#[tokio::test]
async fn wrong_requests_are_told_what_is_wrong() {
    let (server, _service, _client) = start().await;
    let mut raw = LimiterServiceClient::connect(format!("http://{}", server.grpc))
        .await
        .unwrap();
    let good = message(&search());
    let many = std::iter::repeat_n(good.items[0].clone(), 33).collect();
    let negative = prost_types::Duration {
        seconds: -1,
        nanos: 0,
    };
    for (wrong, text) in [
        (
            AcquireRequest {
                domain: String::new(),
                ..good.clone()
            },
            "domain",
        ),
        (
            AcquireRequest {
                items: vec![],
                ..good.clone()
            },
            "item",
        ),
        (
            AcquireRequest {
                items: many,
                ..good.clone()
            },
            "33 items",
        ),
        (
            AcquireRequest {
                ttl: Some(negative),
                ..good.clone()
            },
            "ttl",
        ),
        (
            AcquireRequest {
                request_id: vec![0; 65],
                ..good.clone()
            },
            "64 bytes",
        ),
        (
            AcquireRequest {
                adopt: vec!["x".into()],
                ..good.clone()
            },
            "adopt",
        ),
    ] {
        let status = raw.acquire(wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(text), "{status:?}");
    }
    assert_eq!(
        raw.acquire(good).await.unwrap().into_inner().decision(),
        Decision::Granted
    );
}

/// The request that a client would send.
fn message(ask: &Ask) -> AcquireRequest {
    ask.message().clone()
}

struct Stream {
    say: mpsc::Sender<SessionRequest>,
    said: Streaming<porteiro::proto::porteiro::v1::SessionResponse>,
}

impl Stream {
    async fn open(server: &TestServer, open: Open) -> (Self, String) {
        let address = format!("http://{}", server.grpc);
        let mut client = LimiterServiceClient::connect(address).await.unwrap();
        let (say, heard) = mpsc::channel(16);
        say.send(SessionRequest {
            correlation: 1,
            message: Some(Say::Open(open)),
        })
        .await
        .unwrap();
        let said = client
            .session(ReceiverStream::new(heard))
            .await
            .unwrap()
            .into_inner();
        let mut stream = Self { say, said };
        let Some(Said::Opened(opened)) = stream.hear().await else {
            panic!("Opened expected")
        };
        (stream, opened.resume_token)
    }

    async fn hear(&mut self) -> Option<Said> {
        let message = timeout(PATIENCE, self.said.message()).await.unwrap();
        message.unwrap().and_then(|answer| answer.message)
    }

    async fn acquire(&mut self) -> Decision {
        self.ask(message(&search())).await.decision()
    }

    async fn ask(&mut self, request: AcquireRequest) -> AcquireResponse {
        let request = SessionRequest {
            correlation: 2,
            message: Some(Say::Acquire(request)),
        };
        self.say.send(request).await.unwrap();
        match self.hear().await {
            Some(Said::Acquired(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }
}

fn edge() -> Open {
    Open {
        domain: "edge".into(),
        ..Open::default()
    }
}

#[tokio::test]
async fn leases_of_a_session_end_with_its_stream() {
    let (server, service, _client) = start().await;
    let (mut stream, _) = Stream::open(&server, edge()).await;
    assert_eq!(stream.acquire().await, Decision::Granted);
    assert_eq!(stream.acquire().await, Decision::Granted);
    assert_eq!(stream.acquire().await, Decision::Refused);
    // The TTL is suspended while the stream lives.
    service.clock.advance(Span::from_secs(60));
    assert_eq!(in_flight(&service), 2);
    drop(stream);
    until("the end of the leases", || in_flight(&service) == 0).await;
}

#[tokio::test]
async fn a_session_that_says_goodbye_releases_at_once() {
    let (server, service, _client) = start().await;
    let grace = Some(prost_types::Duration {
        seconds: 30,
        nanos: 0,
    });
    let (mut stream, _) = Stream::open(&server, Open { grace, ..edge() }).await;
    assert_eq!(stream.acquire().await, Decision::Granted);
    let goodbye = SessionRequest {
        correlation: 3,
        message: Some(Say::Goodbye(Goodbye {})),
    };
    stream.say.send(goodbye).await.unwrap();
    assert_eq!(stream.hear().await, None);
    assert_eq!(in_flight(&service), 0);
}

#[tokio::test]
async fn a_lost_session_can_be_resumed_within_its_grace() {
    let (server, service, _client) = start().await;
    let grace = Some(prost_types::Duration {
        seconds: 10,
        nanos: 0,
    });
    let (mut stream, token) = Stream::open(&server, Open { grace, ..edge() }).await;
    assert_eq!(stream.acquire().await, Decision::Granted);
    drop(stream);
    until("the loss of the stream", || {
        service.clock.advance(Span::from_millis(1));
        service.engine.leases().next_due().is_some()
    })
    .await;
    assert_eq!(in_flight(&service), 1, "the grace has begun");
    let (stream, _) = Stream::open(
        &server,
        Open {
            resume_token: token,
            ..edge()
        },
    )
    .await;
    service.clock.advance(Span::from_secs(20));
    assert_eq!(in_flight(&service), 1, "another stream carries it");
    drop(stream);
    until("the loss of the session", || {
        service.clock.advance(Span::from_secs(1));
        in_flight(&service) == 0
    })
    .await;
}

/// A lease on a session, by its id.
async fn lease_on(stream: &mut Stream) -> String {
    match stream.ask(message(&search())).await {
        answer if answer.decision() == Decision::Granted => answer.lease_id,
        other => panic!("{other:?}"),
    }
}

fn release_of(lease_id: String) -> SessionRequest {
    let leases = vec![LeaseEnd {
        lease_id,
        ..LeaseEnd::default()
    }];
    SessionRequest {
        correlation: 4,
        message: Some(Say::Release(ReleaseRequest {
            leases,
            holder: None,
        })),
    }
}

#[tokio::test]
async fn a_session_is_told_that_the_server_stops_and_keeps_its_leases() {
    let (mut server, service, _client) = start().await;
    let (mut stream, _) = Stream::open(&server, edge()).await;
    let lease = lease_on(&mut stream).await;
    server.stop();
    let Some(Said::Draining(draining)) = stream.hear().await else {
        panic!("Draining expected")
    };
    // The whole deadline of the server: its clock stands.
    assert_eq!(draining.move_by.unwrap().seconds, 20);
    let refused = stream.ask(message(&search())).await;
    assert_eq!(
        (refused.decision(), refused.http_status),
        (Decision::Draining, 503)
    );
    assert_eq!(in_flight(&service), 1);
    stream.say.send(release_of(lease)).await.unwrap();
    assert!(matches!(stream.hear().await, Some(Said::Released(_))));
    // It holds nothing and is silent.
    let end = timeout(PATIENCE, stream.said.message()).await.unwrap();
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    drop(stream);
    assert_eq!(server.ended().await, Stopped::Drained);
}

#[tokio::test]
async fn a_session_that_does_not_move_is_ended_in_time() {
    let hurried = Options {
        drain_deadline: Duration::from_millis(100),
        drain_delay: PATIENCE,
        ..options()
    };
    let (mut server, service) = TestServer::with_limiter_and(RULES, hurried).await;
    let (mut stream, _) = Stream::open(&server, edge()).await;
    lease_on(&mut stream).await;
    // As if the server had stopped with nothing left.
    let now = service.clock.now();
    service.engine.leases().drain(now.steady, now);
    assert!(matches!(stream.hear().await, Some(Said::Draining(_))));
    let end = timeout(PATIENCE, stream.said.message()).await.unwrap();
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    until("the end of the leases", || in_flight(&service) == 0).await;
    server.hurry();
    server.stop();
    server.ended().await;
}

#[tokio::test]
async fn while_load_balancers_notice_only_proxies_are_granted() {
    let waiting = Options {
        drain_delay: Duration::from_hours(1),
        ..options()
    };
    let (mut server, service) = TestServer::with_limiter_and(RULES, waiting).await;
    let client = Client::connect(&format!("http://{}", server.grpc))
        .await
        .unwrap();
    server.stop();
    until("the stop", || !server.health.ready()).await;
    let ClientError::Refused { http_status, .. } = client.acquire(search()).await.unwrap_err()
    else {
        panic!("a refusal expected")
    };
    assert_eq!(http_status, 503);
    let mut envoy = server.client().await;
    let answer = envoy
        .should_rate_limit(ask("edge", "upstream", "search"))
        .await;
    assert_eq!(code(&answer.unwrap().into_inner()), "OK");
    assert_eq!(in_flight(&service), 1);
    server.hurry();
    server.ended().await;
}

#[tokio::test]
async fn a_revocation_says_who_and_why() {
    let (server, service, _client) = start().await;
    let (mut stream, _) = Stream::open(&server, edge()).await;
    let lease = lease_on(&mut stream).await;
    let mut operator = LimiterServiceClient::connect(format!("http://{}", server.grpc))
        .await
        .unwrap();
    let reset = ResetRequest {
        domain: "edge".into(),
        descriptors: message(&search())
            .items
            .into_iter()
            .filter_map(|item| item.descriptor)
            .collect(),
        revoke_leases: true,
    };
    operator.reset(reset).await.unwrap();
    let Some(Said::Revoked(revoked)) = stream.hear().await else {
        panic!("Revoked expected")
    };
    assert_eq!(revoked.by(), By::Operator);
    assert_eq!(revoked.lease_ids, [lease]);
    assert_eq!(revoked.reason, "the limit edge.upstream was reset");
    assert_eq!(in_flight(&service), 0);
}

#[tokio::test]
async fn a_domain_may_refuse_what_it_has_no_rule_for() {
    let strict = RULES.replacen("domain: edge", "domain: edge\nunknown_key: refuse", 1);
    for (rules, refuses) in [(RULES, false), (strict.as_str(), true)] {
        let (server, service) = TestServer::with_limiter(rules).await;
        let client = Client::connect(&format!("http://{}", server.grpc))
            .await
            .unwrap();
        let answer = client.acquire(search().item([("typo", "x")])).await;
        assert_eq!(
            matches!(answer, Err(ClientError::UnknownKey)),
            refuses,
            "{answer:?}"
        );
        assert_eq!(in_flight(&service), u64::from(!refuses));
        // Whoever asks as Envoy does passes, as at the reference service.
        let mut envoy = server.client().await;
        let answer = envoy
            .should_rate_limit(ask("edge", "typo", "x"))
            .await
            .unwrap();
        assert_eq!(code(answer.get_ref()), "OK");
    }
}
