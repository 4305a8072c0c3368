//! What clients see: every header family, body and metadata, on passes and on refusals.

use std::collections::{BTreeMap, BTreeSet};

use porteiro::{
    client::fields::{self, Limit, Policy},
    model::time::{Span, Timestamp},
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};
use prost::Message;
use prost_types::value::Kind;
use serde_json::{Value, json};

use crate::support::{REQUEST, Service, message, service};

/// 2023-11-14T22:20:00Z
const START: u64 = 1_700_000_400;

/// The domain `edge` with this contract and these descriptors.
fn edge(answer: &str, rules: &str) -> Service {
    let text = format!(
        "domain: edge\nstacking: all_or_nothing\nanswer: {answer}\ndescriptors:\n{rules}\n"
    );
    let files = BTreeMap::from([("edge.yaml".to_owned(), text)]);
    service(&files, &BTreeMap::new(), Timestamp::from_secs(START))
}

/// One descriptor per pair.
fn asking(pairs: &[(&str, &str)], hits: u32) -> RateLimitRequest {
    let descriptors: Vec<Value> = pairs
        .iter()
        .map(|(key, value)| json!({"entries": [{"key": key, "value": value}]}))
        .collect();
    let request = json!({"domain": "edge", "descriptors": descriptors, "hits_addend": hits});
    message(REQUEST, &request)
}

fn ask(service: &Service, pairs: &[(&str, &str)], hits: u32) -> RateLimitResponse {
    service.ask(&asking(pairs, hits)).unwrap()
}

/// Headers in order, each once.
pub(crate) fn headers(answer: &RateLimitResponse) -> Vec<(&str, &str)> {
    let headers = answer.response_headers_to_add.iter();
    let headers: Vec<_> = headers
        .inspect(|header| assert!(header.raw_value.is_empty(), "Envoy reads only the text"))
        .map(|header| (header.key.as_str(), header.value.as_str()))
        .collect();
    let names: BTreeSet<String> = headers.iter().map(|(n, _)| n.to_lowercase()).collect();
    assert_eq!(names.len(), headers.len(), "{headers:?}");
    headers
}

pub(crate) fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let headers = headers(answer).into_iter();
    headers
        .rev()
        .find(|(n, _)| *n == name)
        .map(|(_, value)| value)
}

pub(crate) fn policies(answer: &RateLimitResponse) -> Vec<Policy> {
    fields::policies(header(answer, "RateLimit-Policy"))
}

pub(crate) fn limits(answer: &RateLimitResponse) -> Vec<Limit> {
    fields::limits(header(answer, "RateLimit"))
}

pub(crate) fn body(answer: &RateLimitResponse) -> Value {
    serde_json::from_slice(&answer.raw_body).unwrap()
}

const USER_BUCKET: &str =
    "- {key: user, limits: [{name: burst, algorithm: token_bucket, rate: 4/8s, burst: 3}]}";

#[test]
fn without_a_contract_nothing_is_added() {
    let service = edge("{}", USER_BUCKET);
    for _ in 0..5 {
        let answer = ask(&service, &[("user", "ann")], 1);
        assert_eq!(headers(&answer), []);
        assert!(answer.raw_body.is_empty());
        assert_eq!(answer.dynamic_metadata, None);
    }
}

#[test]
fn x_ratelimit_is_on_passes_and_refusals() {
    let service = edge("{headers: [x_ratelimit]}", USER_BUCKET);
    let passed = ask(&service, &[("user", "ann")], 1);
    let want = [
        ("X-RateLimit-Limit", "3"),
        ("X-RateLimit-Remaining", "2"),
        ("X-RateLimit-Reset", "1700000402"),
    ];
    assert_eq!(headers(&passed), want);
    service.clock.advance(Span::from_millis(1));
    let passed = ask(&service, &[("user", "ann")], 2);
    // Full again 5.999 s from now: seconds are rounded up.
    assert_eq!(header(&passed, "X-RateLimit-Reset"), Some("1700000406"));
    let refused = ask(&service, &[("user", "ann")], 1);
    let want = [
        ("X-RateLimit-Limit", "3"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1700000406"),
        ("Cache-Control", "no-store"),
    ];
    assert_eq!(headers(&refused), want);
}

#[test]
fn x_ratelimit_tells_more_where_asked() {
    let all =
        "{headers: [{x_ratelimit: {reset_after: true, bucket: true, scope: true, global: true}}]}";
    let rules = "\
- {key: user, limits: [{rate: 1/10s, algorithm: token_bucket}]}
- {key: all, scope: global, limits: [{rate: 1/10s, algorithm: token_bucket}]}
- {key: pool, scope: shared, limits: [{rate: 1/10s, algorithm: token_bucket}]}";
    let service = edge(all, rules);
    let names = |answer: &RateLimitResponse| {
        let names = headers(answer).into_iter().map(|(name, _)| name.to_owned());
        names.collect::<Vec<_>>()
    };
    let passed = ask(&service, &[("user", "ann")], 1);
    assert_eq!(header(&passed, "X-RateLimit-Reset-After"), Some("10.000"));
    assert_eq!(
        names(&passed)[3..],
        ["X-RateLimit-Reset-After", "X-RateLimit-Bucket"]
    );
    service.clock.advance(Span::from_nanos(1));
    let refused = ask(&service, &[("user", "ann")], 1);
    assert_eq!(
        header(&refused, "X-RateLimit-Reset-After"),
        Some("10.000"),
        "up"
    );
    assert_eq!(header(&refused, "X-RateLimit-Scope"), Some("user"));
    assert_eq!(header(&refused, "X-RateLimit-Global"), None);

    ask(&service, &[("all", "x")], 1);
    let refused = ask(&service, &[("all", "x")], 1);
    assert_eq!(header(&refused, "X-RateLimit-Scope"), Some("global"));
    assert_eq!(header(&refused, "X-RateLimit-Global"), Some("true"));
    ask(&service, &[("pool", "x")], 1);
    let refused = ask(&service, &[("pool", "x")], 1);
    assert_eq!(header(&refused, "X-RateLimit-Scope"), Some("shared"));
    assert_eq!(header(&refused, "X-RateLimit-Global"), None);

    // The bucket names the rule: the same for every caller and in every process, other for others.
    let bucket = |service: &Service, key, value| {
        let answer = ask(service, &[(key, value)], 1);
        header(&answer, "X-RateLimit-Bucket").unwrap().to_owned()
    };
    let ann = bucket(&service, "user", "ann");
    assert_eq!(ann, bucket(&service, "user", "bob"));
    assert_eq!(ann, bucket(&edge(all, rules), "user", "eve"));
    assert_ne!(ann, bucket(&service, "pool", "ann"));
    assert_eq!(ann.len(), 16);
    assert!(
        ann.bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    );
}

#[test]
fn buckets_of_two_limits_of_one_rule_differ() {
    let service = edge(
        "{headers: [{x_ratelimit: {bucket: true}}]}",
        "- {key: user, limits: [{rate: 2/s, algorithm: token_bucket}, {rate: 3/h, algorithm: token_bucket}]}",
    );
    let first = ask(&service, &[("user", "ann")], 1);
    ask(&service, &[("user", "ann")], 1);
    service.clock.advance(Span::from_secs(1));
    ask(&service, &[("user", "ann")], 1);
    let hourly = ask(&service, &[("user", "ann")], 1);
    let bucket = |answer| header(answer, "X-RateLimit-Bucket").unwrap().to_owned();
    assert_eq!(header(&first, "X-RateLimit-Limit"), Some("2"));
    assert_eq!(header(&hourly, "X-RateLimit-Limit"), Some("3"));
    assert_ne!(bucket(&first), bucket(&hourly));
}

#[test]
fn a_global_limit_can_be_told_alone_and_kept_back_until_then() {
    let answer = "{headers: [{x_ratelimit: {reset_after: short, scope: true, global: alone}}, ietf, retry_after]}";
    let rules = "\
- {key: all, scope: global, advertise: false, limits: [{name: all, rate: 2/10s, algorithm: leaky_bucket}]}
- {key: route, limits: [{name: route, rate: 3/8s, algorithm: leaky_bucket}]}";
    let service = edge(answer, rules);
    let pairs = [("all", "ann"), ("route", "ann")];
    let passed = ask(&service, &pairs, 1);
    let want = [
        ("X-RateLimit-Limit", "3"),
        ("X-RateLimit-Remaining", "2"),
        ("X-RateLimit-Reset", "1700000403"),
        // 8/3 s, milliseconds up.
        ("X-RateLimit-Reset-After", "2.667"),
        ("RateLimit-Policy", "\"route\";q=3;w=8"),
        ("RateLimit", "\"route\";r=2;t=3"),
    ];
    assert_eq!(headers(&passed), want);
    ask(&service, &pairs, 1);
    let refused = ask(&service, &pairs, 1);
    let want = [
        ("X-RateLimit-Scope", "global"),
        ("X-RateLimit-Global", "true"),
        ("RateLimit-Policy", "\"route\";q=3;w=8"),
        ("RateLimit", "\"route\";r=1;t=3"),
        ("Retry-After", "5"),
        ("Cache-Control", "no-store"),
    ];
    assert_eq!(headers(&refused), want);
    // With nothing else to describe there is nothing.
    let only = ask(&service, &[("all", "bob")], 1);
    assert_eq!(headers(&only), []);
}

#[test]
fn what_is_used_and_of_what_can_be_told() {
    let answer = "{headers: [{x_ratelimit: {used: true, resource: true}}]}";
    let service = edge(answer, USER_BUCKET);
    let answer = ask(&service, &[("user", "ann")], 2);
    let want = [
        ("X-RateLimit-Limit", "3"),
        ("X-RateLimit-Remaining", "1"),
        ("X-RateLimit-Reset", "1700000404"),
        ("X-RateLimit-Used", "2"),
        ("X-RateLimit-Resource", "burst"),
    ];
    assert_eq!(headers(&answer), want);
}

#[test]
fn short_times_are_exact_on_refusals() {
    let answer = "{headers: [{x_ratelimit: {reset_after: short}}]}";
    let rules = "- {key: user, limits: [{rate: 1/10s, algorithm: leaky_bucket}]}";
    let service = edge(answer, rules);
    let reset_after = || {
        let answer = ask(&service, &[("user", "ann")], 1);
        header(&answer, "X-RateLimit-Reset-After")
            .unwrap()
            .to_owned()
    };
    assert_eq!(reset_after(), "10");
    service.clock.advance(Span::from_nanos(1_500_000_001));
    assert_eq!(reset_after(), "8.499999999");
}

#[test]
fn headers_of_passes_can_be_for_some_requests_only() {
    let rules = "\
- {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: kind}";
    for (pass_headers, kind, told) in [
        ("always", "human", true),
        ("never", "bot", false),
        ("[kind=bot, x=]", "bot", true),
        ("[kind=bot]", "human", false),
    ] {
        let answer = format!("{{headers: [reference, x_ratelimit], pass_headers: {pass_headers}}}");
        let service = edge(&answer, rules);
        let ask = || ask(&service, &[("user", "ann"), ("kind", kind)], 1);
        let count = if told { 6 } else { 0 };
        assert_eq!(headers(&ask()).len(), count, "{pass_headers} {kind}");
        assert_eq!(headers(&ask()).len(), count, "{pass_headers} {kind}");
        let refused = ask();
        assert_eq!(header(&refused, "RateLimit-Limit"), Some("2"));
        assert_eq!(header(&refused, "X-RateLimit-Limit"), Some("2"));
    }
}

#[test]
fn a_refusing_rule_tells_its_own_metadata() {
    let answer = "{body: {json: {code: \"{metadata.code}\", text: \"{metadata.code}/{metadata.none}\", message: \"{message}\"}}, messages: {default: \"Wait {retry_after_seconds} s ({metadata.code}).\"}, metadata: true}";
    let rules = "\
- {key: name, limits: [{rate: 1/10s, algorithm: sliding_log}], metadata: {code: NAME, status: 400}}
- {key: other, limits: [{rate: 1/10s, algorithm: sliding_log}]}";
    let service = edge(answer, rules);
    ask(&service, &[("name", "ann"), ("other", "x")], 1);
    let refused = ask(&service, &[("name", "ann")], 1);
    let want = json!({"code": "NAME", "text": "NAME/null", "message": "Wait 10 s (NAME)."});
    assert_eq!(body(&refused), want);
    let metadata = refused.dynamic_metadata.unwrap();
    let Some(Kind::StructValue(rule)) = &metadata.fields["rule_metadata"].kind else {
        panic!("{metadata:?}")
    };
    assert_eq!(rule.fields["status"].kind, Some(Kind::NumberValue(400.0)));
    let refused = ask(&service, &[("other", "x")], 1);
    assert_eq!(body(&refused)["code"], Value::Null);
    let metadata = refused.dynamic_metadata.unwrap();
    assert!(!metadata.fields.contains_key("rule_metadata"));
}

#[test]
fn numbers_of_a_request_keep_the_rules_algorithm() {
    let rules = "- {key: user, request_limit: numbers, metadata: {code: SLOW}, limits: [{name: slow, rate: 1/5s, anchor: last_hit}]}";
    let service = edge(
        "{headers: [retry_after, reason], body: {json: {code: \"{metadata.code}\"}}}",
        rules,
    );
    let numbers = |units: u32, seconds: u32| {
        let mut request = asking(&[("user", "ann")], 1);
        let limit =
            json!({"requests_per_unit": units, "unit": "SECOND", "unit_multiplier": seconds});
        let descriptor = json!({"entries": [{"key": "user", "value": "ann"}], "limit": limit});
        let one: RateLimitRequest = message(REQUEST, &json!({"descriptors": [descriptor]}));
        request.descriptors = one.descriptors;
        service.ask(&request).unwrap()
    };
    // Not a window of the clock: it starts with the hit.
    service.clock.advance(Span::from_secs(3));
    assert_eq!(numbers(1, 30).overall_code, 1);
    service.clock.advance(Span::from_millis(29_999));
    let refused = numbers(1, 30);
    assert_eq!(header(&refused, "Retry-After"), Some("1"));
    assert_eq!(header(&refused, "X-RateLimit-Name"), Some("slow"));
    assert_eq!(body(&refused), json!({"code": "SLOW"}));
    service.clock.advance(Span::from_millis(1));
    assert_eq!(numbers(1, 30).overall_code, 1);
    // Other units of the same period: what was used stays used.
    assert_eq!(numbers(2, 30).overall_code, 1);
    assert_eq!(numbers(2, 30).overall_code, 2);
    // Another period is another counter, and without numbers the rule's own count.
    assert_eq!(numbers(1, 60).overall_code, 1);
    assert_eq!(ask(&service, &[("user", "ann")], 1).overall_code, 1);
    assert_eq!(ask(&service, &[("user", "ann")], 1).overall_code, 2);
    assert_eq!(
        numbers(1, 5).overall_code,
        2,
        "the same counter as the rule's"
    );
    assert_eq!(numbers(0, 5).overall_code, 2);
}

#[test]
fn retry_after_is_on_refusals_only_in_whole_seconds_and_at_least_one() {
    let service = edge("{headers: [retry_after, retry_after_ms]}", USER_BUCKET);
    for _ in 0..3 {
        assert_eq!(headers(&ask(&service, &[("user", "ann")], 1)), []);
    }
    let refused = ask(&service, &[("user", "ann")], 1);
    let want = [
        ("Retry-After", "2"),
        ("Retry-After-Ms", "2000"),
        ("Cache-Control", "no-store"),
    ];
    assert_eq!(headers(&refused), want);
    service.clock.advance(Span::from_micros(1_999_500));
    let refused = ask(&service, &[("user", "ann")], 1);
    assert_eq!(header(&refused, "Retry-After"), Some("1"));
    assert_eq!(header(&refused, "Retry-After-Ms"), Some("1"), "rounded up");
    service.clock.advance(Span::from_millis(1));
    assert_eq!(headers(&ask(&service, &[("user", "ann")], 1)), []);
}

#[test]
fn what_never_passes_has_no_hint_but_a_reason() {
    let answer = "{headers: [ietf, retry_after, retry_after_ms, reason], body: problem_json, metadata: true}";
    let service = edge(answer, USER_BUCKET);
    let refused = ask(&service, &[("user", "ann")], 4);
    assert_eq!(header(&refused, "Retry-After"), None);
    assert_eq!(header(&refused, "Retry-After-Ms"), None);
    assert_eq!(header(&refused, "X-RateLimit-Reason"), Some("never"));
    let limits = limits(&refused);
    assert_eq!((limits[0].remaining, limits[0].until_more), (3, None));
    let body = body(&refused);
    assert_eq!(body["reason"], "never");
    assert_eq!(body.get("retry_after"), None);
    let metadata = refused.dynamic_metadata.unwrap();
    assert!(!metadata.fields.contains_key("retry_after"));
}

#[test]
fn reason_and_name_are_on_refusals() {
    let rules = "\
- {key: user, limits: [{name: burst, rate: 1/s, algorithm: token_bucket}, {rate: 2/h, algorithm: token_bucket}]}
- {key: all, scope: global, limits: [{name: everything, rate: 1/s, algorithm: token_bucket}]}";
    let service = edge("{headers: [reason]}", rules);
    let reason = |pairs: &[(&str, &str)]| {
        let answer = ask(&service, pairs, 1);
        let text = |name| header(&answer, name).unwrap_or("-").to_owned();
        (text("X-RateLimit-Reason"), text("X-RateLimit-Name"))
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(reason(&[("user", "ann")]), pair("-", "-"));
    assert_eq!(reason(&[("user", "ann")]), pair("rate", "burst"));
    service.clock.advance(Span::from_secs(1));
    assert_eq!(reason(&[("user", "ann")]), pair("-", "-"));
    service.clock.advance(Span::from_secs(1));
    // The limit without a name is called by its numbers.
    assert_eq!(reason(&[("user", "ann")]), pair("rate", "2-in-3600s"));
    assert_eq!(reason(&[("all", "x")]), pair("-", "-"));
    assert_eq!(reason(&[("all", "x")]), pair("global", "everything"));
}

#[test]
fn draft_10_tells_every_policy_and_how_it_stands() {
    let rules = "\
- {key: tenant, limits: [{name: tenant, rate: 600/minute}]}
- {key: user, limits: [{name: burst, algorithm: token_bucket, rate: 5/s, burst: 40}, {name: monthly, rate: 50000/month, anchor: calendar, time_zone: UTC}]}
- {key: bytes, limits: [{name: traffic, rate: 1000/10s, algorithm: sliding_log, cost_unit: bytes}]}
- {key: sms, limits: [{name: sms, rate: 3/5d, algorithm: sliding_log, cost_unit: messages}]}";
    let service = edge("{headers: [ietf]}", rules);
    let pairs = [("tenant", "t"), ("user", "u"), ("bytes", "b"), ("sms", "s")];
    let answer = ask(&service, &pairs, 2);
    // In the order of the request, whatever is the closest.
    let want = "\"tenant\";q=600;w=60, \"burst\";q=40;w=8, \"monthly\";q=50000;w=2592000, \
                \"traffic\";q=1000;qu=\"content-bytes\";w=10, \"sms\";q=3;qu=\"messages\";w=432000";
    assert_eq!(header(&answer, "RateLimit-Policy"), Some(want));
    // The closest first. 22:20:00 is the start of a minute; the month ends 1,388,400 s later.
    let want = "\"sms\";r=1;t=432000, \"burst\";r=38;t=1, \"tenant\";r=598;t=60, \
                \"traffic\";r=998;t=10, \"monthly\";r=49998;t=1388400";
    assert_eq!(header(&answer, "RateLimit"), Some(want));
    let policy = header(&answer, "RateLimit-Policy").unwrap().to_owned();
    let refused = ask(&service, &pairs, 2);
    assert_eq!(header(&refused, "RateLimit-Policy"), Some(policy.as_str()));
    assert_eq!(
        header(&refused, "RateLimit").unwrap().split(',').next(),
        Some("\"sms\";r=1;t=432000")
    );
}

#[test]
fn the_window_of_a_bucket_is_the_time_it_takes_to_fill() {
    let rules = "- {key: user, limits: [{algorithm: token_bucket, rate: 3/10s, burst: 7}]}";
    let service = edge("{headers: [ietf]}", rules);
    let answer = ask(&service, &[("user", "ann")], 1);
    let policies = policies(&answer);
    assert_eq!(policies[0].name, "7-in-23334ms");
    assert_eq!(policies[0].quota, 7);
    // 23.33… s, rounded up.
    assert_eq!(policies[0].window, Some(Span::from_secs(24)));
}

#[test]
fn limits_are_advertised_when_they_stand_in_the_way_and_only_then() {
    let rules = "\
- {key: free, rate_limit: {unlimited: true}}
- {key: dark, shadow_mode: true, limits: [{rate: 1/s}]}
- {key: user, limits: [{name: own, rate: 5/s}]}";
    let service = edge("{headers: [ietf, x_ratelimit]}", rules);
    for _ in 0..3 {
        let answer = ask(
            &service,
            &[("dark", "x"), ("free", "x"), ("user", "ann")],
            1,
        );
        let names: Vec<String> = policies(&answer).into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["own"]);
        assert_eq!(header(&answer, "X-RateLimit-Limit"), Some("5"));
    }
    // With nothing to tell there is nothing.
    assert_eq!(
        headers(&ask(&service, &[("dark", "x"), ("free", "x")], 1)),
        []
    );
    assert_eq!(headers(&ask(&service, &[("unknown", "x")], 1)), []);
}

#[test]
fn a_refund_tells_nothing() {
    let service = edge("{headers: [ietf, x_ratelimit]}", USER_BUCKET);
    let mut refund = asking(&[("user", "ann")], 1);
    refund.descriptors[0].is_negative_hits = true;
    assert_eq!(headers(&service.ask(&refund).unwrap()), []);
}

#[test]
fn at_most_eight_limits_are_told_the_most_restrictive_ones() {
    let rules: Vec<String> = (1..=12)
        .map(|n| {
            format!(
                "- {{key: k{n}, limits: [{{name: n{n}, rate: {}/s}}]}}",
                100 - n
            )
        })
        .collect();
    let service = edge("{headers: [ietf]}", &rules.join("\n"));
    let keys: Vec<String> = (1..=12).map(|n| format!("k{n}")).collect();
    let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "x")).collect();
    let answer = ask(&service, &pairs, 1);
    let names = |names: Vec<String>| names.join(" ");
    let told = limits(&answer).into_iter().map(|l| l.name).collect();
    assert_eq!(names(told), "n12 n11 n10 n9 n8 n7 n6 n5");
    let promised = policies(&answer).into_iter().map(|p| p.name).collect();
    assert_eq!(names(promised), "n5 n6 n7 n8 n9 n10 n11 n12");
}

#[test]
fn two_limits_never_have_one_name() {
    let rules = "\
- {key: a, limits: [{rate: 100/minute}]}
- {key: b, limits: [{rate: 100/minute}]}
- {key: c, limits: [{name: same, rate: 7/minute}]}";
    let service = edge("{headers: [ietf]}", rules);
    let pairs = [("a", "x"), ("b", "x"), ("c", "x"), ("c", "y"), ("c", "x")];
    for hits in [1, 1, 2] {
        let answer = ask(&service, &pairs, hits);
        let names: Vec<String> = policies(&answer).into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["100-in-60s", "100-in-60s-2", "same", "same-2"]);
        let told: BTreeSet<String> = limits(&answer).into_iter().map(|l| l.name).collect();
        assert_eq!(told, names.into_iter().collect());
    }
}

#[test]
fn partition_keys_tell_callers_apart_and_say_nothing_else() {
    let service = edge("{headers: [{ietf: {pk: true}}]}", USER_BUCKET);
    let partition = |value| {
        let answer = ask(&service, &[("user", value)], 1);
        let pk = policies(&answer)[0].partition.clone().unwrap();
        assert_eq!(limits(&answer)[0].partition.as_ref(), Some(&pk));
        pk
    };
    let ann = partition("ann");
    assert_eq!(ann.len(), 8);
    assert_eq!(partition("ann"), ann);
    assert_ne!(partition("bob"), ann);
    assert_eq!(
        policies(&ask(
            &edge("{headers: [ietf]}", USER_BUCKET),
            &[("user", "x")],
            1
        ))[0]
            .partition,
        None
    );
}

#[test]
fn older_drafts_have_their_own_shapes() {
    let rules = "\
- {key: user, limits: [{rate: 100/minute}]}
- {key: client, limits: [{rate: 5/10s, algorithm: token_bucket}]}";
    let pairs = [("user", "ann"), ("client", "x")];
    let draft_07 = edge("{headers: [{ietf: {version: 07}}]}", rules);
    let answer = ask(&draft_07, &pairs, 1);
    let want = [
        ("RateLimit", "limit=5, remaining=4, reset=2"),
        ("RateLimit-Policy", "100;w=60, 5;w=10"),
    ];
    assert_eq!(headers(&answer), want);
    let draft_03 = edge("{headers: [{ietf: {version: 03}}]}", rules);
    let answer = ask(&draft_03, &pairs, 1);
    let want = [
        ("RateLimit-Limit", "5, 100;w=60, 5;w=10"),
        ("RateLimit-Remaining", "4"),
        ("RateLimit-Reset", "2"),
    ];
    assert_eq!(headers(&answer), want);
    // `reset` cannot be left out: of a cost that never passes it is when nothing is used.
    let never = ask(&draft_03, &pairs, 6);
    assert_eq!(header(&never, "RateLimit-Reset"), Some("2"));
}

#[test]
fn problem_json_names_what_was_violated() {
    let rules = "\
- {key: user, limits: [{name: own, rate: 1/10s, algorithm: token_bucket}]}
- {key: tenant, limits: [{name: tenant, rate: 1/20s, algorithm: token_bucket}]}
- {key: other, limits: [{name: other, rate: 10/20s, algorithm: token_bucket}]}";
    let service = edge("{body: problem_json}", rules);
    let pairs = [("user", "ann"), ("tenant", "t"), ("other", "o")];
    let passed = ask(&service, &pairs, 1);
    assert!(passed.raw_body.is_empty());
    assert_eq!(headers(&passed), []);
    service.clock.advance(Span::from_micros(500));
    let refused = ask(&service, &pairs, 1);
    let want = [
        ("Cache-Control", "no-store"),
        ("Content-Type", "application/problem+json"),
    ];
    assert_eq!(headers(&refused), want);
    let want = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": "You are sending too many requests.",
        "reason": "rate",
        "violated-policies": ["tenant", "own"],
        "retry_after": 20.0,
    });
    assert_eq!(body(&refused), want);
}

#[test]
fn problem_json_of_a_shared_limit_is_reduced_capacity() {
    let rules = "- {key: pool, scope: shared, limits: [{rate: 0/s, algorithm: token_bucket}]}";
    let service = edge("{body: problem_json}", rules);
    let body = body(&ask(&service, &[("pool", "x")], 1));
    let kind = body["type"].as_str().unwrap();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
}

#[test]
fn templates_are_typed_where_a_text_is_one_placeholder() {
    let template = r#"{json: {message: "{message}", retry_after: "{retry_after}", seconds: "{retry_after_seconds}", code: 0, nested: ["{limit}", {left: "{remaining}"}], text: "{limit_name}: {reason} {scope} {global} {limit}/{unknown} {{reason}", global: "{global}"}}"#;
    let rules =
        "- {key: user, scope: global, limits: [{name: own, rate: 2/10s, algorithm: token_bucket}]}";
    let service = edge(&format!("{{body: {template}}}"), rules);
    ask(&service, &[("user", "ann")], 1);
    ask(&service, &[("user", "ann")], 1);
    service.clock.advance(Span::from_millis(1_250));
    let refused = ask(&service, &[("user", "ann")], 1);
    assert_eq!(header(&refused, "Content-Type"), Some("application/json"));
    let want = json!({
        "message": "You are sending too many requests.",
        "retry_after": 3.75,
        "seconds": 4,
        "code": 0,
        "nested": [2, {"left": 0}],
        "text": "own: global global true 2/{unknown} {global",
        "global": true,
    });
    assert_eq!(body(&refused), want);
    // What never passes has no time.
    let never = body(&ask(&service, &[("user", "ann")], 3));
    assert_eq!(
        (&never["retry_after"], &never["seconds"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn messages_speak_the_callers_language() {
    let answer = "{body: {json: {m: \"{message}\"}}, messages: {by: lang, default: Slow down., texts: {de: Langsamer., pt-br: Devagar., en: Easy.}}}";
    let rules = "\
- {key: user, limits: [{rate: 0/s}], descriptors: [{key: lang, limits: [{rate: 0/s}]}]}";
    let service = edge(answer, rules);
    let text = |lang: &str| {
        let entries = json!([{"key": "user", "value": "a"}, {"key": "lang", "value": lang}]);
        let request = json!({"domain": "edge", "descriptors": [{"entries": entries}]});
        let answer = service.ask(&message(REQUEST, &request)).unwrap();
        body(&answer)["m"].as_str().unwrap().to_owned()
    };
    assert_eq!(text("de"), "Langsamer.");
    assert_eq!(text("DE-at"), "Langsamer.");
    assert_eq!(text("pt-BR"), "Devagar.");
    assert_eq!(
        text("pt"),
        "Slow down.",
        "another Portuguese is another language"
    );
    assert_eq!(
        text("fr-CH, fr;q=0.9, de;q=0.7, en;q=0.8, *;q=0.5"),
        "Easy.",
        "by weight"
    );
    assert_eq!(text("fr, de;q=0"), "Slow down.", "refused by the client");
    for odd in ["", ",,;;q=", "\r\n", "de;q=x", "*"] {
        text(odd);
    }
    assert_eq!(body(&ask(&service, &[("user", "a")], 1))["m"], "Slow down.");
}

#[test]
fn metadata_has_the_same_facts_typed() {
    let rules = "\
- {key: user, limits: [{name: own, rate: 2/10s, algorithm: token_bucket}]}
- {key: dark, shadow_mode: true, limits: [{rate: 1/h}]}";
    let service = edge("{metadata: true}", rules);
    let text = |answer: &RateLimitResponse| {
        let fields = &answer.dynamic_metadata.as_ref().unwrap().fields;
        let shown = |kind: &Kind| match kind {
            Kind::StringValue(text) => text.clone(),
            Kind::NumberValue(number) => number.to_string(),
            Kind::ListValue(list) => format!("{} in list", list.values.len()),
            other => format!("{other:?}"),
        };
        let field = |(name, value): (&String, &prost_types::Value)| {
            format!("{name}={}", shown(value.kind.as_ref().unwrap()))
        };
        fields.iter().map(field).collect::<Vec<_>>().join(" ")
    };
    let pairs = [("user", "ann"), ("dark", "x")];
    let passed = ask(&service, &pairs, 1);
    assert_eq!(
        text(&passed),
        "domain=edge limit=own remaining=1 rule=edge.user"
    );
    let passed = ask(&service, &pairs, 1);
    assert_eq!(
        text(&passed),
        "domain=edge limit=own remaining=0 rule=edge.user shadow_refused=1 in list"
    );
    service.clock.advance(Span::from_millis(2_500));
    let refused = ask(&service, &pairs, 1);
    assert_eq!(
        text(&refused),
        "domain=edge limit=own reason=rate remaining=0 retry_after=2.5 rule=edge.user \
         shadow_refused=1 in list"
    );
    // A refusal that only shadow mode hides is told even when nothing else limits the request.
    let hidden = ask(&service, &[("dark", "x")], 1);
    assert_eq!(text(&hidden), "domain=edge shadow_refused=1 in list");
}

#[test]
fn our_metadata_stands_beside_the_references() {
    let text = format!("domain: edge\nanswer: {{metadata: true}}\ndescriptors:\n{USER_BUCKET}\n");
    let files = BTreeMap::from([("edge.yaml".to_owned(), text)]);
    let env = BTreeMap::from([("RESPONSE_DYNAMIC_METADATA".to_owned(), "true".to_owned())]);
    let service = service(&files, &env, Timestamp::from_secs(START));
    let answer = ask(&service, &[("user", "ann")], 1);
    let names: Vec<String> = answer
        .dynamic_metadata
        .unwrap()
        .fields
        .into_keys()
        .collect();
    let want = [
        "descriptors",
        "domain",
        "hitsAddend",
        "limit",
        "remaining",
        "rule",
    ];
    assert_eq!(names, want);
}

#[test]
fn hints_are_spread_and_never_shortened() {
    let rules = "- {key: user, limits: [{rate: 1/100s, algorithm: token_bucket}]}";
    let service = edge("{spread: 0.5, headers: [retry_after, ietf]}", rules);
    let mut told = BTreeSet::new();
    for caller in 0..50 {
        let caller = caller.to_string();
        ask(&service, &[("user", &caller)], 1);
        let refused = ask(&service, &[("user", &caller)], 1);
        let seconds: u64 = header(&refused, "Retry-After").unwrap().parse().unwrap();
        assert!((100..=150).contains(&seconds), "{seconds}");
        assert!(Span::from_secs(seconds) >= limits(&refused)[0].until_more.unwrap());
        told.insert(seconds);
    }
    assert!(told.len() > 15, "{told:?}");
}

#[test]
fn the_references_headers_can_be_asked_for_per_domain() {
    let rules = "- {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}";
    let service = edge("{headers: [reference]}", rules);
    let answer = ask(&service, &[("user", "ann")], 1);
    let want = [
        ("RateLimit-Limit", "2"),
        ("RateLimit-Remaining", "1"),
        ("RateLimit-Reset", "60"),
    ];
    assert_eq!(headers(&answer), want);
}

/// Everything at once.
const EVERYTHING: &str = "{headers: [{x_ratelimit: {reset_after: true, bucket: true, scope: true, global: true}}, {ietf: {pk: true}}, retry_after, retry_after_ms, reason], body: {json: {a: \"{message} {limit_name}\", b: \"{reason}\"}}, messages: {by: user}, metadata: true, spread: 0.1}";

/// Every text that a message has, at whatever depth.
fn texts(answer: &RateLimitResponse) -> Vec<String> {
    fn of_value(value: &prost_types::Value, texts: &mut Vec<String>) {
        match value.kind.as_ref() {
            Some(Kind::StringValue(text)) => texts.push(text.clone()),
            Some(Kind::ListValue(list)) => list.values.iter().for_each(|v| of_value(v, texts)),
            Some(Kind::StructValue(fields)) => {
                for (key, value) in &fields.fields {
                    texts.push(key.clone());
                    of_value(value, texts);
                }
            }
            _ => {}
        }
    }
    let mut texts = vec![String::from_utf8(answer.raw_body.clone()).unwrap()];
    for header in &answer.response_headers_to_add {
        texts.extend([header.key.clone(), header.value.clone()]);
    }
    for status in &answer.statuses {
        texts.extend(
            status
                .current_limit
                .as_ref()
                .map(|limit| limit.name.clone()),
        );
    }
    for (key, value) in answer.dynamic_metadata.iter().flat_map(|m| &m.fields) {
        texts.push(key.clone());
        of_value(value, &mut texts);
    }
    texts
}

#[test]
fn whatever_comes_in_no_control_character_leaves() {
    let text = format!(
        "domain: edge\nanswer: {EVERYTHING}\ndescriptors:\n\
         - {{key: user, limits: [{{rate: 2/10s}}], metadata: {{\"a\\nb\": \"c\\rd\", list: [\"x\\0y\"]}}}}\n\
         - {{key: \"k*\", limits: [{{rate: 2/10s}}]}}\n"
    );
    let files = BTreeMap::from([("edge.yaml".to_owned(), text)]);
    let env = BTreeMap::from([
        ("RESPONSE_DYNAMIC_METADATA".to_owned(), "true".to_owned()),
        (
            "LIMIT_RESPONSE_HEADERS_ENABLED".to_owned(),
            "true".to_owned(),
        ),
    ]);
    let service = service(&files, &env, Timestamp::from_secs(START));
    let hostile = [
        "a\r\nset-cookie: x=1",
        "\0",
        "\n",
        "\u{7f}\u{85}\u{9b}",
        "\"; DROP \\ \"",
        "{message} {limit_name}",
        "é語🦀\u{2028}",
        "\u{1b}[31m",
    ];
    let mut seen = 0;
    for value in hostile {
        for key in ["user", "k\r\n1", value] {
            for _ in 0..3 {
                let answer = ask(&service, &[(key, value)], 1);
                for text in texts(&answer) {
                    assert!(!text.contains(char::is_control), "{text:?}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 1_000, "{seen}");
}

#[test]
fn names_of_rules_become_visible_ascii() {
    let rules = "- {key: user, limits: [{name: \"größe \\\"1\\\" \\\\ 語\", rate: 1/10s, cost_unit: \"häppchen\"}]}";
    let service = edge("{headers: [ietf, reason]}", rules);
    let answer = ask(&service, &[("user", "ann")], 1);
    let name = "gr__e \"1\" \\ _";
    assert_eq!(limits(&answer)[0].name, name);
    assert_eq!(policies(&answer)[0].name, name);
    assert_eq!(policies(&answer)[0].unit, "h_ppchen");
    let refused = ask(&service, &[("user", "ann")], 1);
    assert_eq!(header(&refused, "X-RateLimit-Name"), Some(name));
}

#[test]
fn numbers_are_within_what_a_field_can_hold() {
    let rules =
        "- {key: user, limits: [{rate: 18446744073709551615/10s, algorithm: sliding_window}]}";
    for version in ["03", "07", "10"] {
        let answer = format!("{{headers: [{{ietf: {{version: {version}}}}}]}}");
        let answer = ask(&edge(&answer, rules), &[("user", "ann")], 1);
        for (_, value) in headers(&answer) {
            let without_names = value.split('"').step_by(2);
            for number in without_names.flat_map(|text| text.split(|c: char| !c.is_ascii_digit())) {
                assert!(number.len() <= 15, "{value}");
            }
        }
        assert!(
            headers(&answer)
                .iter()
                .any(|(_, v)| v.contains("999999999999999"))
        );
    }
}

#[test]
fn every_answer_encodes_and_reads_back() {
    let service = edge(EVERYTHING, USER_BUCKET);
    for _ in 0..5 {
        let answer = ask(&service, &[("user", "ann")], 1);
        let bytes = answer.encode_to_vec();
        assert_eq!(RateLimitResponse::decode(&bytes[..]).unwrap(), answer);
        assert_eq!(policies(&answer).len(), 1);
        assert_eq!(limits(&answer).len(), 1);
    }
}

/// What Envoy makes of the statuses itself (`enable_retry_after_header`,
/// `enable_x_ratelimit_headers`).
fn by_envoy(answer: &RateLimitResponse) -> (Option<i64>, Option<u32>) {
    let over = answer.statuses.iter().filter(|status| status.code == 2);
    let waits = over.map(|status| status.duration_until_reset.map_or(0, |d| d.seconds).max(1));
    let limited = answer
        .statuses
        .iter()
        .filter(|status| status.current_limit.is_some());
    let closest = limited.min_by_key(|status| status.limit_remaining);
    let shown = closest.and_then(|status| status.current_limit.as_ref());
    (waits.max(), shown.map(|limit| limit.requests_per_unit))
}

#[test]
fn envoys_own_headers_are_true() {
    let rules = "\
- {key: tenant, limits: [{rate: 100/minute, algorithm: token_bucket, burst: 5}]}
- {key: user, limits: [{rate: 4/8s, algorithm: token_bucket, burst: 3}]}";
    let service = edge("{}", rules);
    let pairs = [("tenant", "t"), ("user", "ann")];
    assert_eq!(by_envoy(&ask(&service, &pairs, 1)), (None, Some(4)));
    ask(&service, &pairs, 1);
    let refused = ask(&service, &pairs, 2);
    // One is left, but not for a cost of two: Envoy describes the limit that refuses.
    assert_eq!(refused.statuses[1].limit_remaining, 0);
    assert_eq!(by_envoy(&refused), (Some(2), Some(4)));
    service.clock.advance(Span::from_secs(2));
    assert_eq!(ask(&service, &pairs, 2).overall_code, 1);
}
