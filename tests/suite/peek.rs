//! Peek and Reset, on the gRPC service and on `/counters`.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Router, body::Body};
use porteiro::{
    api::{bounds::Bounds, counters, limiter::Limiter},
    model::time::{Span, Timestamp},
    proto::{
        envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
        porteiro::v1::{
            AcquireRequest, PeekRequest, PeekResponse, Reason, ReleaseRequest, ResetRequest,
            ResetResponse, limiter_service_server::LimiterService, peek_response::Place,
        },
    },
};
use serde_json::{Value, json};
use tonic::Status;
use tower_service::Service as _;

use crate::support::{REQUEST, Service, message, now, service};

/// 2023-11-14T22:20:00Z
const START: Timestamp = Timestamp::from_secs(1_700_000_400);

const PEEK: &str = "porteiro.v1.PeekRequest";
const RESET: &str = "porteiro.v1.ResetRequest";

const RULES: &str = "
domain: edge
stacking: all_or_nothing
descriptors:
- key: tenant
  rate_limit: {unit: minute, requests_per_unit: 600}
- key: user
  limits:
  - {name: burst, algorithm: token_bucket, rate: 5/s, burst: 40}
  - {name: sms, algorithm: sliding_log, rate: 30/5d}
- key: free
  rate_limit: {unlimited: true}
- key: dark
  shadow_mode: true
  limits: [{rate: 2/h}]
- key: soft
  quota_mode: true
  limits: [{rate: 2/h}]
- key: all
  scope: global
  limits: [{rate: 1/h}]
- key: upstream
  concurrency: {limit: 3}
";

struct Stage {
    service: Service,
    limiter: Limiter,
    http: Router,
}

fn stage() -> Stage {
    let files = BTreeMap::from([("edge.yaml".to_owned(), RULES.to_owned())]);
    let service = service(&files, &BTreeMap::new(), START);
    let (engine, bounds) = (&service.engine, Bounds::default());
    Stage {
        limiter: Limiter::new(Arc::clone(engine), bounds),
        http: counters::router(Arc::clone(engine), bounds),
        service,
    }
}

fn descriptors(pairs: &[(&str, &str)]) -> Value {
    let one = |(key, value): &(&str, &str)| json!({"entries": [{"key": key, "value": value}]});
    pairs.iter().map(one).collect()
}

impl Stage {
    fn take(&self, pairs: &[(&str, &str)], hits: u32) -> Code {
        let json =
            json!({"domain": "edge", "descriptors": descriptors(pairs), "hits_addend": hits});
        let request: RateLimitRequest = message(REQUEST, &json);
        self.service.ask(&request).unwrap().overall_code()
    }

    fn peek_json(&self, json: &Value) -> Result<PeekResponse, Status> {
        let request: PeekRequest = message(PEEK, json);
        now(self.limiter.peek(tonic::Request::new(request))).map(tonic::Response::into_inner)
    }

    fn peek(&self, pairs: &[(&str, &str)], hits: u32) -> PeekResponse {
        let json =
            json!({"domain": "edge", "descriptors": descriptors(pairs), "hits_addend": hits});
        self.peek_json(&json).unwrap()
    }

    fn reset(&self, pairs: &[(&str, &str)]) -> ResetResponse {
        let json = json!({"domain": "edge", "descriptors": descriptors(pairs)});
        let request: ResetRequest = message(RESET, &json);
        let response = now(self.limiter.reset(tonic::Request::new(request)));
        response.unwrap().into_inner()
    }

    fn http(&self, method: &str, query: &str) -> (u16, String) {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("/counters?{query}"))
            .body(Body::empty())
            .unwrap();
        let response = now(self.http.clone().call(request)).unwrap();
        let status = response.status().as_u16();
        let body = now(axum::body::to_bytes(response.into_body(), usize::MAX)).unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn get(&self, query: &str) -> Value {
        let (status, body) = self.http("GET", query);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

fn seconds(seconds: i64, nanos: i32) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos }
}

#[test]
fn would_25_pass_and_when() {
    let stage = stage();
    assert_eq!(stage.take(&[("user", "ann")], 28), Code::Ok);
    let peek = stage.peek(&[("user", "ann")], 25);
    assert!(!peek.would_pass);
    assert_eq!(peek.reason(), Reason::Rate);
    // 12 are left in the bucket: 13 more take 2.6 s. The log lets only 2 more pass for five days,
    // so that is the one that binds.
    let five_days = 5 * 86_400;
    assert_eq!(peek.retry_after, Some(seconds(five_days, 0)));
    assert_eq!(
        peek.binding,
        Some(Place {
            descriptor: 0,
            limit: 1
        })
    );
    let user = &peek.descriptors[0];
    assert_eq!((user.rule.as_str(), user.would_pass), ("edge.user", false));
    let [burst, sms] = &user.limits[..] else {
        panic!("{user:?}")
    };
    assert_eq!(
        (burst.name.as_str(), burst.algorithm.as_str()),
        ("burst", "token_bucket")
    );
    assert_eq!((burst.limit, burst.used, burst.remaining), (40, 28, 12));
    assert_eq!(burst.window, Some(seconds(8, 0)));
    assert_eq!(burst.reset, Some(seconds(5, 600_000_000)));
    assert_eq!(burst.retry_after, Some(seconds(2, 600_000_000)));
    assert_eq!(burst.more_after, Some(seconds(0, 200_000_000)));
    assert_eq!(sms.retry_after, Some(seconds(five_days, 0)));
    assert_eq!(sms.reason(), Reason::Rate);
    let small = stage.peek(&[("user", "ann")], 2);
    assert!(small.would_pass && small.descriptors[0].would_pass);
    assert_eq!(
        (small.retry_after, small.reason()),
        (None, Reason::Unspecified)
    );
    assert_eq!(small.descriptors[0].limits[1].retry_after, None);
    assert_eq!(
        small.binding,
        Some(Place {
            descriptor: 0,
            limit: 1
        }),
        "least is left of it"
    );
    let never = stage.peek(&[("user", "ann")], 41);
    assert_eq!((never.retry_after, never.reason()), (None, Reason::Never));
    assert_eq!(never.descriptors[0].limits[0].reason(), Reason::Never);
}

#[test]
fn a_look_changes_nothing() {
    let stage = stage();
    let everything = [
        ("tenant", "t"),
        ("user", "ann"),
        ("soft", "x"),
        ("all", "x"),
        ("upstream", "u"),
    ];
    let first = stage.peek(&everything, 1);
    for hits in [0, 1, 1_000, u32::MAX] {
        stage.peek(&everything, hits);
        assert_eq!(stage.peek(&everything, 1), first);
    }
    assert!(stage.service.engine.store().memory().is_empty());
}

#[test]
fn after_a_hundred_refusals_of_a_user_the_tenant_is_as_before() {
    let stage = stage();
    let both = [("tenant", "acme"), ("user", "ann")];
    assert_eq!(stage.take(&both, 30), Code::Ok);
    let before = stage.peek(&[("tenant", "acme")], 1);
    for _ in 0..100 {
        assert_eq!(stage.take(&both, 1), Code::OverLimit);
    }
    assert_eq!(stage.peek(&[("tenant", "acme")], 1), before);
}

#[test]
fn descriptors_say_what_they_are() {
    let stage = stage();
    stage.take(&[("dark", "x"), ("soft", "x"), ("all", "x")], 1);
    let peek = stage.peek(
        &[
            ("free", "x"),
            ("dark", "x"),
            ("soft", "x"),
            ("all", "x"),
            ("nobody", "x"),
        ],
        2,
    );
    let [free, dark, soft, all, nobody] = &peek.descriptors[..] else {
        panic!("{peek:?}")
    };
    assert!(free.unlimited && free.would_pass && free.limits.is_empty());
    assert!(dark.shadow && dark.would_pass && !dark.limits[0].would_pass);
    assert!(soft.quota && !soft.would_pass);
    assert_eq!(all.limits[0].reason(), Reason::Never);
    assert_eq!((nobody.rule.as_str(), nobody.would_pass), ("", true));
    let peek = stage.peek(&[("all", "x")], 1);
    assert_eq!(peek.reason(), Reason::Global);
    assert_eq!(
        peek.binding,
        Some(Place {
            descriptor: 0,
            limit: 0
        })
    );
    let peek = stage.peek(&[("free", "x"), ("dark", "x")], 5);
    assert_eq!((peek.would_pass, peek.binding), (true, None));
}

#[test]
fn costs_of_descriptors_count_and_add_up() {
    let stage = stage();
    let twice = json!({"domain": "edge", "descriptors": [
        {"entries": [{"key": "user", "value": "ann"}], "hits_addend": 20},
        {"entries": [{"key": "user", "value": "ann"}], "hits_addend": 11},
    ]});
    let peek = stage.peek_json(&twice).unwrap();
    assert!(!peek.would_pass, "20 and 11 of 30");
    assert_eq!(peek.reason(), Reason::Never);
    assert!(peek.descriptors[0].would_pass && !peek.descriptors[1].would_pass);
    // A limit that comes with the request, and a refund, which is looked at as a cost.
    let own = json!({"domain": "edge", "descriptors": [
        {"entries": [{"key": "x", "value": "y"}], "limit": {"requests_per_unit": 3, "unit": "HOUR"}, "hits_addend": 4},
        {"entries": [{"key": "user", "value": "ann"}], "hits_addend": 31, "is_negative_hits": true},
    ]});
    let peek = stage.peek_json(&own).unwrap();
    assert_eq!(
        (
            peek.descriptors[0].rule.as_str(),
            peek.descriptors[0].limits[0].limit
        ),
        ("", 3)
    );
    assert!(!peek.descriptors[0].would_pass && !peek.descriptors[1].would_pass);
}

#[test]
fn work_in_flight_is_shown_with_its_estimates() {
    let stage = stage();
    let fresh = stage.peek(&[("upstream", "u")], 1);
    assert_eq!(
        fresh.descriptors[0].limits[0].in_flight, None,
        "nobody asked yet"
    );
    for _ in 0..3 {
        assert_eq!(stage.take(&[("upstream", "u")], 1), Code::Ok);
    }
    let peek = stage.peek(&[("upstream", "u")], 1);
    let limit = &peek.descriptors[0].limits[0];
    assert_eq!(limit.algorithm, "concurrency");
    assert_eq!((limit.limit, limit.used, limit.remaining), (3, 3, 0));
    assert_eq!((limit.window, limit.more_after), (None, None));
    assert_eq!(
        (peek.would_pass, peek.reason()),
        (false, Reason::Concurrency)
    );
    assert_eq!(limit.in_flight.unwrap().leases, 3);
    assert!(peek.retry_after.is_some());
    assert_eq!(stage.peek(&[("upstream", "u")], 4).reason(), Reason::Never);
    // A reset forgets what was learnt, not who holds what.
    assert_eq!(
        stage.reset(&[("upstream", "u")]),
        ResetResponse {
            counters: 0,
            in_flight: 1
        }
    );
    assert_eq!(
        stage.peek(&[("upstream", "u")], 1).descriptors[0].limits[0].used,
        3
    );
    let (status, body) = stage.http("POST", "domain=edge&descriptor=upstream=u&revoke=true");
    assert_eq!(
        (status, body.as_str()),
        (200, "{\"counters\":0,\"in_flight\":1}")
    );
    assert_eq!(
        stage.peek(&[("upstream", "u")], 3).descriptors[0].limits[0].used,
        0
    );
}

#[test]
fn a_reset_forgets_these_callers_and_no_others() {
    let stage = stage();
    for user in ["ann", "bob"] {
        assert_eq!(stage.take(&[("tenant", "t"), ("user", user)], 30), Code::Ok);
        assert_eq!(stage.take(&[("user", user)], 1), Code::OverLimit);
    }
    let reset = stage.reset(&[
        ("user", "ann"),
        ("user", "eve"),
        ("free", "x"),
        ("none", "x"),
    ]);
    assert_eq!(
        reset,
        ResetResponse {
            counters: 2,
            in_flight: 0
        }
    );
    assert_eq!(stage.take(&[("user", "ann")], 30), Code::Ok);
    assert_eq!(stage.take(&[("user", "bob")], 1), Code::OverLimit);
    assert_eq!(
        stage.peek(&[("tenant", "t")], 1).descriptors[0].limits[0].used,
        60
    );
}

#[test]
fn what_makes_no_sense_is_refused_and_an_unknown_domain_passes() {
    let stage = stage();
    let code = |json: Value| stage.peek_json(&json).unwrap_err().code();
    let invalid = tonic::Code::InvalidArgument;
    assert_eq!(code(json!({"descriptors": [{}]})), invalid);
    assert_eq!(code(json!({"domain": "edge"})), invalid);
    let many = vec![json!({}); 33];
    assert_eq!(
        code(json!({"domain": "edge", "descriptors": many})),
        invalid
    );
    let long = "x".repeat(2_000);
    let long = json!([{"entries": [{"key": "user", "value": long}]}]);
    assert_eq!(
        code(json!({"domain": "edge", "descriptors": long})),
        invalid
    );
    let unit = json!([{"limit": {"requests_per_unit": 1}}]);
    assert_eq!(
        code(json!({"domain": "edge", "descriptors": unit})),
        invalid
    );
    let elsewhere = json!({"domain": "nowhere", "descriptors": [{}]});
    assert!(stage.peek_json(&elsewhere).unwrap().would_pass);
    let reset: ResetRequest = message(RESET, &json!({"domain": "edge"}));
    let refused = now(stage.limiter.reset(tonic::Request::new(reset)));
    assert_eq!(refused.unwrap_err().code(), invalid);
}

#[test]
fn counters_are_read_over_http() {
    let stage = stage();
    stage.take(&[("user", "ann")], 28);
    stage.service.clock.advance(Span::from_millis(100));
    let shown = stage.get("domain=edge&descriptor=user=ann&descriptor=free=x&cost=25");
    let want = json!({
        "would_pass": false,
        "retry_after": 431_999.9,
        "reason": "rate",
        "binding": {"descriptor": 0, "limit": 1},
        "descriptors": [
            {
                "rule": "edge.user",
                "would_pass": false,
                "limits": [
                    {
                        "name": "burst", "algorithm": "token_bucket", "limit": 40, "window": 8.0,
                        "used": 28, "remaining": 12, "reset": 5.5, "would_pass": false,
                        "retry_after": 2.5, "reason": "rate", "more_after": 0.1,
                    },
                    {
                        "name": "sms", "algorithm": "sliding_log", "limit": 30,
                        "window": 432_000.0, "used": 28, "remaining": 2, "reset": 431_999.9,
                        "would_pass": false, "retry_after": 431_999.9, "reason": "rate",
                        "more_after": 431_999.9,
                    },
                ],
            },
            {"rule": "edge.free", "would_pass": true, "unlimited": true, "limits": []},
        ],
    });
    assert_eq!(shown, want);
    // Without a cost it is one unit.
    assert_eq!(
        stage.get("domain=edge&descriptor=user=ann")["would_pass"],
        true
    );
}

#[test]
fn counters_are_reset_over_http() {
    let stage = stage();
    for method in ["POST", "DELETE"] {
        assert_eq!(stage.take(&[("user", "a,b=c")], 30), Code::Ok);
        let query = "domain=edge&descriptor=user=a%5C,b%3Dc";
        let (status, body) = stage.http(method, query);
        assert_eq!(
            (status, body.as_str()),
            (200, "{\"counters\":2,\"in_flight\":0}")
        );
    }
}

#[test]
fn a_wrong_query_says_what_is_wrong() {
    let stage = stage();
    for (method, query, words) in [
        ("GET", "", "the domain must not be empty"),
        ("GET", "domain=edge", "at least one descriptor is needed"),
        (
            "GET",
            "domain=edge&descriptor=user",
            "`user` is no key=value",
        ),
        (
            "GET",
            "domain=edge&descriptor=user=x&cost=many",
            "cost is `many`",
        ),
        (
            "GET",
            "domain=edge&descriptor=user=x&cost=-1",
            "cost is `-1`",
        ),
        (
            "GET",
            "domain=edge&descriptor=user=x&revoke=true",
            "`revoke` is no parameter",
        ),
        (
            "POST",
            "domain=edge&descriptor=user=x&cost=1",
            "`cost` is no parameter",
        ),
        ("GET", "dormain=edge", "`dormain` is no parameter"),
    ] {
        let (status, body) = stage.http(method, query);
        assert_eq!(status, 400, "{query}: {body}");
        assert!(body.contains(words), "{query}: {body}");
    }
    assert_eq!(stage.http("PUT", "domain=edge").0, 405);
}

#[test]
fn leases_are_listed_oldest_first_without_their_ids() {
    let stage = stage();
    let holder = |id: &str| Some(json!({"id": id, "instance": format!("{id}-1")}));
    let acquire = |id: &str, ttl: &str| {
        let request: AcquireRequest = message(
            "porteiro.v1.AcquireRequest",
            &json!({
                "domain": "edge", "holder": holder(id), "ttl": ttl,
                "items": [{"descriptor": descriptors(&[("upstream", "u")])[0]}],
            }),
        );
        now(stage.limiter.acquire(tonic::Request::new(request)))
            .unwrap()
            .into_inner()
    };
    acquire("leaks", "1s");
    stage.service.clock.advance(Span::from_secs(2));
    // The first one lives shorter: by age, not by expiry.
    acquire("second", "20s");
    stage.service.clock.advance(Span::from_secs(3));
    acquire("third", "10s");
    stage.service.clock.advance(Span::from_millis(500));
    let json = json!({
        "domain": "edge", "descriptors": descriptors(&[("upstream", "u")]), "leases": 1,
    });
    let peek = stage.peek_json(&json).unwrap();
    let [lease] = peek.descriptors[0].limits[0].leases.as_slice() else {
        panic!("{peek:?}")
    };
    assert_eq!(lease.holder.as_ref().unwrap().id, "second");
    assert_eq!(lease.holder.as_ref().unwrap().instance, "second-1");
    assert_eq!((lease.permits, lease.in_session), (1, false));
    assert_eq!(lease.age, Some(seconds(3, 500_000_000)));
    assert_eq!(lease.expires_in, Some(seconds(16, 500_000_000)));
    let [leaking] = peek.leaking_holders.as_slice() else {
        panic!("{peek:?}")
    };
    assert_eq!((leaking.holder.as_str(), leaking.expired), ("leaks", 1));
    assert_eq!((leaking.granted, leaking.live), (1, 0));
    // Nobody who does not ask is told.
    let plain = stage.peek(&[("upstream", "u")], 1);
    assert!(plain.leaking_holders.is_empty());
    assert!(plain.descriptors[0].limits[0].leases.is_empty());
    let shown = stage.get("domain=edge&descriptor=upstream=u&leases=9");
    assert_eq!(
        shown["descriptors"][0]["limits"][0]["leases"],
        json!([
            {"holder": "second", "instance": "second-1", "permits": 1, "age": 3.5,
             "expires_in": 16.5},
            {"holder": "third", "instance": "third-1", "permits": 1, "age": 0.5,
             "expires_in": 9.5},
        ])
    );
    assert_eq!(shown["leaking_holders"][0]["holder"], "leaks");
    assert_eq!(stage.http("GET", "domain=edge&leases=x").0, 400);
}

#[test]
fn the_metrics_of_leases_are_there_by_limit_and_never_by_key() {
    let stage = stage();
    for caller in 0..40 {
        let upstream = format!("u{caller}");
        for _ in 0..3 {
            stage.take(&[("upstream", &upstream)], 1);
        }
    }
    let acquire = |upstream: &str| {
        let request: AcquireRequest = message(
            "porteiro.v1.AcquireRequest",
            &json!({
                "domain": "edge",
                "items": [{"descriptor": descriptors(&[("upstream", upstream)])[0]}],
            }),
        );
        let answer = now(stage.limiter.acquire(tonic::Request::new(request)));
        answer.unwrap().into_inner().lease_id
    };
    assert_eq!(acquire("u0"), "");
    let lease = json!({"lease_id": acquire("v")});
    let release: ReleaseRequest = message(
        "porteiro.v1.ReleaseRequest",
        &json!({"leases": [lease.clone(), lease]}),
    );
    now(stage.limiter.release(tonic::Request::new(release))).unwrap();
    stage.service.clock.advance(Span::from_secs(60));
    let page = porteiro::telemetry::page::render(&stage.service.engine.metrics());
    for name in [
        "limit",
        "in_flight",
        "waiters",
        "reserved_slots",
        "ghosts",
        "leases",
        "sessions",
        "lambda_per_second",
        "w_seconds",
        "l",
        "saturation",
        "refused_ratio_forecast",
        "leak_share",
        "ttl_advice_seconds",
        "boot",
        "acquires_total",
        "lease_ends_total",
        "shadow_refused_total",
        "early_releases_total",
        "cancelled_acquires_total",
        "conservation_error_seconds",
        "sweep_lag_seconds_bucket",
    ] {
        let start = format!("porteiro_concurrency_{name}");
        let series = page.lines().filter(|line| {
            line.strip_prefix(start.as_str())
                .is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        let count = series.count();
        assert!((1..=24).contains(&count), "{count} of {name}");
    }
    let of = |line: &str| page.lines().any(|known| known.starts_with(line));
    let limit = "{domain=\"edge\",limit=\"edge.upstream\"}";
    for histogram in ["hold", "hint"] {
        assert!(of(&format!(
            "porteiro_concurrency_{histogram}_seconds_count{limit} 1"
        )));
    }
    for status in ["released", "already_released"] {
        let labels = format!("{{domain=\"edge\",status=\"{status}\"}}");
        assert!(
            of(&format!("porteiro_concurrency_releases_total{labels} 1")),
            "{page}"
        );
    }
    assert!(of(&format!(
        "porteiro_concurrency_conservation_error_seconds{limit} 0"
    )));
    assert!(of(&format!(
        "porteiro_concurrency_sweep_lag_seconds_count{limit} 120"
    )));
}
