//! Whose fault a refusal is: 429 and 503 over HTTP, the reason under Envoy, `http_status` in
//! Acquire; and that of several limits the one with the longest wait decides.

use porteiro::{
    client::{Ask, Client},
    model::time::Span,
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};
use prost_types::value::Kind;
use serde_json::{Value, json};
use tokio::task::{self, JoinHandle};

use crate::{
    serving::{TestServer, http, options, within},
    support::{REQUEST, message},
};

const RULES: &str = "
domain: edge
stacking: all_or_nothing
answer: {headers: [reason, retry_after], metadata: true, body: problem_json}
descriptors:
- key: pool
  scope: shared
  concurrency: {limit: 1, name: pool, prior_hold: 4s, hint_jitter: 0, hint_booking: false}
- key: own
  concurrency: {limit: 1, name: own, prior_hold: 8s, hint_jitter: 0, hint_booking: false}
- key: class
  concurrency: {limit: 2, name: class, criticality: [1, 1, 0.5, 0.5], hint_jitter: 0}
- key: adaptive
  concurrency: {target_latency: 1s, initial: 1, name: adaptive, hint_jitter: 0}
- {key: plan, limits: [{name: plan, rate: 1/day}]}
- {key: fleet, scope: shared, limits: [{name: fleet, rate: 1/day}]}
";

struct Desk {
    server: TestServer,
    time: JoinHandle<()>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.time.abort();
    }
}

impl Desk {
    /// A server whose clock goes on whenever somebody waits.
    async fn open() -> Self {
        let (server, service) = TestServer::with_limiter(RULES).await;
        let (engine, clock) = (service.engine.clone(), service.clock.clone());
        let time = task::spawn(async move {
            loop {
                if let Some(due) = engine.leases().next_due() {
                    clock.advance(clock.now().steady.until(due));
                    engine.leases().turn(clock.now());
                }
                task::yield_now().await;
            }
        });
        Self { server, time }
    }

    /// Status and headers over HTTP, and the answer over gRPC.
    async fn ask(&self, entries: &[&str]) -> (u16, String, RateLimitResponse) {
        let descriptors: Vec<Value> = entries.iter().map(|entries| descriptor(entries)).collect();
        let request = json!({"domain": "edge", "descriptors": descriptors});
        let (status, head, _) = http(self.server.http, "POST", "/json", &request.to_string()).await;
        let mut client = self.server.client().await;
        let request: RateLimitRequest = message(REQUEST, &request);
        let answer = within(client.should_rate_limit(request)).await;
        (status, head, answer.unwrap().into_inner())
    }

    /// What HTTP, the reason header and the metadata say; the latter two have to agree.
    async fn blame(&self, entries: &[&str]) -> (u16, String) {
        let (status, _, answer) = self.ask(entries).await;
        let header = reason(&answer);
        let metadata = answer.dynamic_metadata.unwrap_or_default();
        let told = metadata
            .fields
            .get("reason")
            .and_then(|told| told.kind.clone());
        assert_eq!(told, Some(Kind::StringValue(header.clone())));
        (status, header)
    }

    async fn fill(&self, entries: &[(&'static str, &'static str)]) {
        let client = Client::connect(&format!("http://{}", self.server.grpc))
            .await
            .unwrap();
        for (key, value) in entries {
            let ask = Ask::new("edge").item([(*key, *value)]);
            // Dropped permits would be given back.
            std::mem::forget(client.acquire(ask).await.unwrap());
        }
    }
}

/// `key=value;key=value`
fn descriptor(entries: &str) -> Value {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        json!({"key": key, "value": value})
    };
    json!({"entries": entries.split(';').map(entry).collect::<Vec<_>>()})
}

fn reason(answer: &RateLimitResponse) -> String {
    let headers = answer.response_headers_to_add.iter();
    let mut named = headers.filter(|header| header.key == "X-RateLimit-Reason");
    named
        .next()
        .map_or("none", |header| &header.value)
        .to_owned()
}

#[tokio::test]
async fn the_callers_own_limit_is_429_and_a_shared_one_503() {
    let desk = Desk::open().await;
    desk.fill(&[
        ("own", "a"),
        ("pool", "a"),
        ("adaptive", "a"),
        ("plan", "a"),
        ("fleet", "a"),
    ])
    .await;
    for (entries, status, reason) in [
        ("own=a", 429, "concurrency"),
        ("pool=a", 503, "shared"),
        ("adaptive=a", 503, "shed"),
        ("plan=a", 429, "rate"),
        ("fleet=a", 503, "shared"),
    ] {
        let blame = desk.blame(&[entries]).await;
        assert_eq!(blame, (status, reason.to_owned()), "{entries}");
    }
    assert_eq!(desk.ask(&["own=b"]).await.0, 200);
}

#[tokio::test]
async fn who_is_less_critical_is_shed_with_503() {
    let desk = Desk::open().await;
    desk.fill(&[("class", "a")]).await;
    let shed = desk.blame(&["class=a;criticality=sheddable"]).await;
    assert_eq!(shed, (503, "shed".to_owned()));
    desk.fill(&[("class", "a")]).await;
    // All permits are out: that is the caller's own doing.
    let full = desk.blame(&["class=a;criticality=critical"]).await;
    assert_eq!(full, (429, "concurrency".to_owned()));
}

#[tokio::test]
async fn of_two_the_longer_wait_decides_and_both_are_named() {
    let desk = Desk::open().await;
    desk.fill(&[("own", "a"), ("pool", "a"), ("plan", "a")])
        .await;
    let violated = |answer: &RateLimitResponse| {
        let body: Value = serde_json::from_slice(&answer.raw_body).unwrap();
        body["violated-policies"].clone()
    };
    // The pool is free in 4 s, the caller's own limit in 8 s: in either order of the request.
    for entries in [["own=a", "pool=a"], ["pool=a", "own=a"]] {
        let (status, head, answer) = desk.ask(&entries).await;
        assert_eq!((status, reason(&answer).as_str()), (429, "concurrency"));
        assert!(head.contains("\r\nretry-after: 8\r\n"), "{head}");
        assert!(head.contains("\r\nretry-after-ms: 8000\r\n"), "{head}");
        assert_eq!(violated(&answer), json!(["own", "pool"]));
    }
    // A day is longer than both.
    let (status, _, answer) = desk.ask(&["pool=a", "plan=a"]).await;
    assert_eq!((status, reason(&answer).as_str()), (429, "rate"));
    assert_eq!(violated(&answer), json!(["plan", "pool"]));
}

#[tokio::test]
async fn http_tells_the_wait_in_seconds_and_in_milliseconds_both_rounded_up() {
    const RULES: &str = "
domain: edge
descriptors:
- {key: user, limits: [{rate: 40/minute, burst: 1, algorithm: token_bucket}]}
";
    let (server, clock) = TestServer::with_rules(RULES, options()).await;
    let ask = async || {
        let request = json!({"domain": "edge", "descriptors": [descriptor("user=ana")]});
        http(server.http, "POST", "/json", &request.to_string()).await
    };
    let (status, head, _) = ask().await;
    assert_eq!(status, 200);
    assert!(!head.contains("retry-after"), "{head}");
    // The next one of 1.5 s is there 1.4997 s from now.
    clock.advance(Span::from_micros(300));
    let (status, head, _) = ask().await;
    assert_eq!(status, 429);
    assert!(head.contains("\r\nretry-after: 2\r\n"), "{head}");
    assert!(head.contains("\r\nretry-after-ms: 1500\r\n"), "{head}");
}
