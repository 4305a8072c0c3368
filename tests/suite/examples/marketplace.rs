//! Documented tiers, told by the fields of the IETF draft.

use porteiro::{
    client::fields::{Limit, Policy},
    model::time::Span,
    proto::envoy::service::ratelimit::v3::RateLimitResponse,
};
use serde_json::json;

use super::{Example, item, overall};
use crate::contract::{body, header, headers, limits, policies};

/// As Envoy asks: the key, then the partner.
fn call(api: &Example, plan: &str, partner: &str, key: &str) -> RateLimitResponse {
    api.ask(&[
        item(&[("plan", plan), ("partner", partner), ("api_key", key)]),
        item(&[("plan", plan), ("partner", partner)]),
    ])
}

fn start() -> Example {
    Example::start("marketplace", "marketplace")
}

#[test]
fn every_answer_has_the_documented_numbers_of_the_plan() {
    for (plan, minute, day) in [
        ("free", 60, 1_000),
        ("pro", 600, 50_000),
        ("enterprise", 6_000, 1_000_000),
    ] {
        let api = start();
        let answer = call(&api, plan, "p1", "k1");
        let told: Vec<(String, u64, Option<Span>)> = policies(&answer)
            .into_iter()
            .map(|policy| (policy.name, policy.quota, policy.window))
            .collect();
        let want = [
            (format!("{plan}-minute"), minute, Some(Span::from_secs(60))),
            (format!("{plan}-day"), day, Some(Span::from_secs(86_400))),
        ];
        assert_eq!(told, want);
        let mut left: Vec<(String, u64)> = limits(&answer)
            .into_iter()
            .map(|limit| (limit.name, limit.remaining))
            .collect();
        left.sort();
        let want = [
            (format!("{plan}-day"), day - 1),
            (format!("{plan}-minute"), minute - 1),
        ];
        assert_eq!(left, want);
    }
}

#[test]
fn the_fields_are_those_of_the_draft_to_the_letter() {
    let api = start();
    let answer = call(&api, "free", "p1", "k1");
    let partition = |policy: &Policy| policy.partition.clone().unwrap();
    let [minute, day] = &policies(&answer)[..] else {
        panic!("two policies")
    };
    assert_ne!(partition(minute), partition(day), "a key is no partner");
    let text = header(&answer, "RateLimit-Policy").unwrap();
    let parts: Vec<&str> = text.split(", ").collect();
    assert!(
        parts[0].starts_with("\"free-minute\";q=60;w=60;pk=:"),
        "{text}"
    );
    assert!(
        parts[1].starts_with("\"free-day\";q=1000;w=86400;pk=:"),
        "{text}"
    );
    let names: Vec<&str> = headers(&answer).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["RateLimit-Policy", "RateLimit"]);
    // Another key of the partner: the same day, another minute.
    let other = policies(&call(&api, "free", "p1", "k2"));
    assert_eq!(partition(&other[1]), partition(day));
    assert_ne!(partition(&other[0]), partition(minute));
}

#[test]
fn a_plan_that_changes_is_told_by_the_next_answer() {
    let api = start();
    assert!((0..60).all(|_| overall(&call(&api, "free", "p1", "k1")) == 1));
    assert_eq!(overall(&call(&api, "free", "p1", "k1")), 2);
    let upgraded = call(&api, "pro", "p1", "k1");
    assert_eq!(overall(&upgraded), 1);
    let of = |name: &str, all: Vec<Limit>| all.into_iter().find(|limit| limit.name == name);
    assert_eq!(of("pro-minute", limits(&upgraded)).unwrap().remaining, 599);
    assert_eq!(policies(&upgraded)[0].quota, 600);
    // Back again: what was used of the day's free requests is still used.
    let back = call(&api, "free", "p1", "k2");
    assert_eq!(of("free-day", limits(&back)).unwrap().remaining, 939);
}

#[test]
fn a_refusal_is_a_problem_that_names_the_policy() {
    let api = start();
    for n in 0..1_000 {
        assert_eq!(
            overall(&call(&api, "free", "p1", &format!("k{}", n / 50))),
            1,
            "{n}"
        );
    }
    let refused = call(&api, "free", "p1", "fresh");
    assert_eq!(
        header(&refused, "Content-Type"),
        Some("application/problem+json")
    );
    // 22:20:00, so 100 minutes to midnight.
    assert_eq!(header(&refused, "Retry-After"), Some("6000"));
    let want = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": "The plan's limit free-day of 1000 requests is used up.",
        "reason": "rate",
        "violated-policies": ["free-day"],
        "retry_after": 6_000.0,
    });
    assert_eq!(body(&refused), want);
    assert_eq!(
        overall(&call(&api, "free", "p2", "fresh")),
        1,
        "another partner"
    );
    api.wait(Span::from_secs(6_000));
    assert_eq!(overall(&call(&api, "free", "p1", "fresh")), 1);
}

#[test]
fn a_plan_that_nobody_documented_has_no_quota() {
    let api = start();
    let answer = call(&api, "gratis", "p1", "k1");
    assert_eq!((overall(&answer), headers(&answer)), (1, vec![]));
}
