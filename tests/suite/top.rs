//! `/top` of the admin surface.

use std::collections::BTreeMap;

use axum::body::Body;
use porteiro::{
    api::{bounds::Bounds, limiter::Limiter, top},
    model::time::{Span, Timestamp},
    proto::{
        envoy::service::ratelimit::v3::RateLimitRequest,
        porteiro::v1::{
            AcquireRequest, acquire_response::Decision, limiter_service_server::LimiterService,
        },
    },
};
use serde_json::{Value, json};
use tower_service::Service as _;

use crate::support::{REQUEST, Service, message, now, service};

const RULES: &str = "
domain: d
descriptors:
- key: tenant
  value_to_metric: true
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: email, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: work, concurrency: {limit: 1}}
";

fn stage() -> Service {
    let files = BTreeMap::from([("d.yaml".to_owned(), RULES.to_owned())]);
    service(
        &files,
        &BTreeMap::new(),
        Timestamp::from_secs(1_700_000_400),
    )
}

fn ask(stage: &Service, entries: &[(&str, &str)], hits: u32) {
    let entries = entries
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}));
    let request = json!({
        "domain": "d", "hitsAddend": hits,
        "descriptors": [{"entries": entries.collect::<Vec<_>>()}],
    });
    let request: RateLimitRequest = message(REQUEST, &request);
    stage.ask(&request).unwrap();
}

fn get(stage: &Service, query: &str) -> (u16, String) {
    let mut router = top::router(stage.engine.clone());
    let request = http::Request::get(format!("/top?{query}"))
        .body(Body::empty())
        .unwrap();
    let response = now(router.call(request)).unwrap();
    let status = response.status().as_u16();
    let body = now(axum::body::to_bytes(response.into_body(), usize::MAX)).unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn callers_are_told_with_names_only_where_statistics_have_them() {
    let stage = stage();
    for hits in [3, 3] {
        ask(&stage, &[("tenant", "acme"), ("user", "ann@example")], hits);
        ask(&stage, &[("email", "bob@example\n")], 1);
    }
    ask(&stage, &[("work", "a")], 1);
    stage.clock.advance(Span::from_secs(3));
    let (status, body) = get(&stage, "domain=d");
    assert_eq!(status, 200, "{body}");
    assert!(!body.contains("@example"), "{body}");
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shown["sample"], 32);
    let rules = shown["rules"].as_array().unwrap();
    let paths: Vec<&Value> = rules.iter().map(|rule| &rule["rule"]).collect();
    assert_eq!(paths, ["d.tenant.user", "d.email", "d.work"]);
    let first = &rules[0];
    assert_eq!(
        (&first["hits"], &first["refused"], &first["seconds"]),
        (&json!(6), &json!(3), &json!(3.0))
    );
    let heaviest = &first["heaviest"][0];
    assert_eq!(heaviest["descriptor"], "tenant=acme,user");
    assert_eq!(
        (&heaviest["hits"], &heaviest["over_by"]),
        (&json!(6), &json!(0))
    );
    assert_eq!(heaviest["id"].as_str().unwrap().len(), 16);
    assert_eq!(first["most_refused"][0]["id"], heaviest["id"]);
    assert_eq!(first["most_refused"][0]["hits"], 3);
    assert_eq!(rules[1]["heaviest"][0].get("descriptor"), None);
    assert_eq!(rules[2]["heaviest"][0]["hits"], 1);
}

#[test]
fn one_rule_as_text() {
    let stage = stage();
    for number in 0..100 {
        let name = format!("t{number}");
        let hits = if number == 50 { 1_000 } else { 1 };
        ask(&stage, &[("tenant", &name), ("user", "ann")], hits);
    }
    let (status, text) = get(&stage, "domain=d&rule=d.tenant.user&n=1&format=text");
    assert_eq!(status, 200, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let [
        sampled,
        "",
        head,
        "  heaviest",
        heaviest,
        "  most refused",
        refused,
    ] = lines[..]
    else {
        panic!("{text}")
    };
    assert!(sampled.contains("one request in 32"), "{sampled}");
    // After 64 of a second one in 32 counts, so the sum is an estimate.
    assert!(head.starts_with("d.tenant.user: 1"), "{head}");
    assert!(heaviest.trim_start().starts_with("1000  "), "{heaviest}");
    assert!(heaviest.ends_with("  tenant=t50,user"), "{heaviest}");
    assert!(refused.ends_with("  tenant=t50,user"), "{refused}");
}

#[test]
fn what_is_wrong_is_said() {
    let stage = stage();
    for (query, text) in [
        ("", "domain is missing"),
        ("domain=e", "there is no domain `e`"),
        ("domain=d&rule=d.x", "there is no rule `d.x`"),
        ("domain=d&n=0", "from 1 to 64"),
        ("domain=d&n=65", "from 1 to 64"),
        ("domain=d&format=xml", "json or text"),
        ("domain=d&descriptor=a=b", "no parameter"),
    ] {
        let (status, body) = get(&stage, query);
        assert_eq!(status, 400, "{query}: {body}");
        assert!(body.contains(text), "{query}: {body}");
    }
}

#[test]
fn who_acquires_is_counted_as_well() {
    let stage = stage();
    let limiter = Limiter::new(stage.engine.clone(), Bounds::default());
    let acquire = |key: &str, permits: u64, dry_run: bool| {
        let request: AcquireRequest = message(
            "porteiro.v1.AcquireRequest",
            &json!({
                "domain": "d", "dryRun": dry_run,
                "items": [
                    {"descriptor": {"entries": [{"key": "work", "value": key}]}, "permits": permits},
                    {"descriptor": {"entries": [{"key": "email", "value": "bob@example"}]}, "hits": 1},
                ],
            }),
        );
        let answer = now(limiter.acquire(tonic::Request::new(request))).unwrap();
        answer.into_inner().decision()
    };
    assert_eq!(acquire("a", 1, false), Decision::Granted);
    assert_eq!(acquire("a", 1, false), Decision::Refused);
    assert_eq!(acquire("b", 1, true), Decision::WouldGrant);
    assert_eq!(acquire("b", 2, false), Decision::Never);
    let (_, body) = get(&stage, "domain=d");
    let shown: Value = serde_json::from_str(&body).unwrap();
    let counted = |rule: &str| {
        let rules = shown["rules"].as_array().unwrap();
        let rule = rules.iter().find(|shown| shown["rule"] == rule).unwrap();
        let callers = rule["most_refused"].as_array().unwrap();
        let refused = callers
            .iter()
            .map(|caller| caller["hits"].as_u64().unwrap());
        (rule["hits"].as_u64().unwrap(), refused.collect::<Vec<_>>())
    };
    assert_eq!(counted("d.work"), (4, vec![2, 1]));
    assert_eq!(counted("d.email"), (3, vec![]));
}
