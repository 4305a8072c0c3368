//! What is done with bytes of nobody's choice, one function for each way in. None of them may panic,
//! whatever the bytes are; what else must hold is asserted.
#![allow(dead_code, reason = "each target uses one of them")]

pub(crate) mod state;

use std::{
    num::NonZeroUsize,
    pin::pin,
    sync::LazyLock,
    task::{Context, Poll, Waker},
};

use axum::body::Body;
use porteiro::{
    api::{
        bounds::Bounds,
        envoy_rls::{AnswerOptions, RateLimit},
        headers::HeaderNames,
        json,
    },
    client::fields as client_fields,
    config::{self, LoadOptions},
    engine::{Engine, EngineOptions},
    model::{
        key::KeyHasher,
        time::{ManualClock, Timestamp},
    },
    proto::envoy::service::ratelimit::v3::RateLimitRequest,
    rules::Rules,
    store::{
        Store,
        memory::{MemoryOptions, MemoryStore},
    },
};
use prost::Message as _;
use tower_service::Service as _;

/// Rules that look at every kind of value, and that remember in every way.
const RULES: &str = "\
domain: d
stacking: all_or_nothing
answer: {headers: [ietf, x_ratelimit, reference], body: problem_json, metadata: true}
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: user, value: a, limits: [{rate: 5/s, algorithm: token_bucket, burst: 9}, {rate: 100/day, algorithm: sliding_log}]}
- {key: path, value: 'regex:^/[a-z]{1,8}$', limits: [{rate: 7/hour, algorithm: sliding_window}]}
- {key: ip, value: 'cidr:10.0.0.0/8', limits: [{rate: 20/hour, algorithm: leaky_bucket, burst: 2}]}
- {key: calendar, rate_limit: {unit: month, requests_per_unit: 9}}
- {key: open, rate_limit: {unlimited: true}}
- {key: lease_id, concurrency: {limit: 3, lease_ttl: 10m, on_restart: snapshot}}
";

/// What the recorded requests of `tests/cases` ask for.
const EDGE: &str = "\
domain: edge
descriptors:
- {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 6}}
- {key: remote_address, value: ab*, rate_limit: {unit: second, requests_per_unit: 2}}
- {key: user-id, value: w, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 100}}
- {key: user-id, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 4294967295}}
- key: tenant
  descriptors:
  - {key: path, value: '*', share_threshold: true, limits: [{rate: 5/s, algorithm: token_bucket}]}
  - {key: k1, limits: [{rate: 9/day, algorithm: sliding_log}]}
";

const OPTIONS: EngineOptions = EngineOptions {
    near_limit_ratio: 0.8,
    shadow_mode: false,
    quota_mode: false,
    top_sample: 1,
    max_stat_paths: 100,
};

/// Every run of a body that needs one begins with these.
fn rules() -> Rules {
    let files = [("d.yaml", RULES), ("edge.yaml", EDGE)];
    let rules = config::parse(&files, &LoadOptions::default());
    rules.into_rules().expect("the rules are right")
}

/// Few places, so that some have to give way.
pub(crate) fn memory() -> MemoryStore {
    MemoryStore::new(MemoryOptions {
        max_keys: NonZeroUsize::new(1000).expect("more than 0"),
        ..MemoryOptions::default()
    })
}

static SERVICE: LazyLock<RateLimit> = LazyLock::new(|| {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let hasher = KeyHasher::random();
    let engine = Engine::new(clock.clock(), hasher, Store::from(memory()), OPTIONS);
    engine.install(rules());
    let answers = AnswerOptions {
        headers: Some(HeaderNames::default()),
        dynamic_metadata: true,
    };
    RateLimit::new(engine.into(), Bounds::default(), answers)
});

/// Nothing of this waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// A message of Envoy's protocol: decoded, decided, answered.
pub(crate) fn rls(data: &[u8]) {
    let Ok(request) = RateLimitRequest::decode(data) else {
        return;
    };
    let at = Timestamp::from_secs(1_000_000);
    let clock = ManualClock::at(at);
    if let Ok(answer) = now(SERVICE.answer(&request, clock.now(), None)) {
        assert_eq!(answer.statuses.len(), request.descriptors.len());
        for header in &answer.response_headers_to_add {
            let value = http::HeaderValue::from_str(&header.value);
            assert!(value.is_ok(), "{header:?}");
        }
    }
}

/// A rule file: rules, or findings with their places.
pub(crate) fn yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let first = config::parse(&[("f.yaml", text)], &LoadOptions::default());
    // Twice the same.
    let second = config::parse(&[("f.yaml", text)], &LoadOptions::default());
    assert_eq!(first.into_rules().is_ok(), second.into_rules().is_ok());
}

/// The body of `POST /json`.
pub(crate) fn json(data: &[u8]) {
    static ROUTER: LazyLock<axum::Router> =
        LazyLock::new(|| json::router(SERVICE.clone().into(), 1 << 16, None));
    let request = http::Request::post("/json").body(Body::from(data.to_vec()));
    let answer = now(ROUTER.clone().call(request.expect("a request")));
    let status = answer.expect("infallible").status().as_u16();
    assert!([200, 400, 413, 429].contains(&status), "{status}");
}

/// Header fields of answers, as a client reads them.
pub(crate) fn fields(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = client_fields::policies(text.split('\n'));
    let _ = client_fields::limits(text.split('\n'));
}
