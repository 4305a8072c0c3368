//! What the reference's own tests state (`tests/cases/envoy-ratelimit.yaml`): accounting, reset,
//! service, replaces, integration. Lookup and refused files are in [`crate::config`], `/json` and
//! health in [`crate::server`].
//!
//! Each case of those sections is tested here, or is in one of the lists below.

use std::collections::{BTreeMap, BTreeSet};

use porteiro::{
    config::{self, LoadOptions},
    model::time::{Span, Timestamp},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{
            Code::{self, Ok as Passed, OverLimit},
            DescriptorStatus,
        },
    },
    telemetry::{call::CallStat, rule::RuleStat},
};
use prost_types::value::Kind;
use serde_json::{Value, json};

use crate::{
    support::{REQUEST, Service, message, service},
    yaml,
};

/// Where ours differs on purpose: cases, the first words of the row in the README's table, why.
const ON_PURPOSE: [(&[&str], &str, &str); 4] = [
    (
        &["A09", "A10"],
        "no domain, no descriptors",
        "a bad request must not look like an outage: INVALID_ARGUMENT, the same counter moves",
    ),
    (
        &["A30"],
        "override with unit UNKNOWN or an undefined number",
        "no request may end the process: INVALID_ARGUMENT, no counter is touched",
    ),
    (
        &["N13", "N14"],
        "counters",
        "in memory there is nothing that a local cache could spare: the counter itself answers, \
         the same except that over_limit_with_local_cache stays 0 (over Redis: tests/redis/local_cache.rs)",
    ),
    (
        &["I17", "I18"],
        "`hits_addend: 0` in a descriptor",
        "a probe refuses exactly when not one more hit fits: one call less passes than there",
    ),
];

/// What other tests show, or what a counter in memory cannot.
const ELSEWHERE: [(&str, &str); 8] = [
    (
        "A11",
        "a store in memory does not fail; a shared one answers UNAVAILABLE",
    ),
    ("A14", "spans are not sent"),
    (
        "I05",
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT belongs to Redis; `stacking: all_or_nothing` is ours",
    ),
    ("I07", "CACHE_KEY_PREFIX belongs to Redis"),
    ("I08", "EXTRA_TAGS belongs to statsd"),
    ("I09", "tests/e2e/test_reload.py"),
    ("I11", "certificates"),
    ("I12", "certificates"),
];

/// 2023-11-14T22:20:00Z
const START: Timestamp = Timestamp::from_secs(1_700_000_400);

fn cases(section: &str) -> Vec<Value> {
    let text = std::fs::read_to_string("tests/cases/envoy-ratelimit.yaml").unwrap();
    yaml::read(&text)[section].as_array().unwrap().clone()
}

fn id(case: &Value) -> &str {
    case["id"].as_str().unwrap()
}

/// Every case of a section goes to `check`, which knows the ids; those that are tested elsewhere do
/// not.
fn each(section: &str, check: impl Fn(&Value)) {
    let mut tested = 0;
    for case in cases(section) {
        if let Some((_, place)) = ELSEWHERE.iter().find(|(other, _)| *other == id(&case)) {
            println!("{} elsewhere: {place}", id(&case));
            continue;
        }
        check(&case);
        tested += 1;
    }
    println!("{section}: {tested} cases tested");
}

/// The domain `d` with these descriptors, and the reference's settings.
fn start(descriptors: &str, env: &[(&str, &str)]) -> Service {
    let text = format!("domain: d\ndescriptors:\n{descriptors}\n");
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let files = BTreeMap::from([("d.yaml".to_owned(), text)]);
    service(&files, &env.collect(), START)
}

/// A descriptor written `k:v k2:v2`.
fn descriptor(text: &str) -> Value {
    let entries = text.split_whitespace().map(|entry| {
        let (key, value) = entry.split_once(':').unwrap_or((entry, ""));
        json!({"key": key, "value": value})
    });
    json!({"entries": entries.collect::<Vec<_>>()})
}

fn request(descriptors: &[Value], hits: u64) -> RateLimitRequest {
    let json = json!({"domain": "d", "descriptors": descriptors, "hits_addend": hits});
    message(REQUEST, &json)
}

fn ask(service: &Service, descriptors: &[&str]) -> RateLimitResponse {
    let descriptors: Vec<Value> = descriptors.iter().map(|text| descriptor(text)).collect();
    service.ask(&request(&descriptors, 0)).unwrap()
}

fn codes(answer: &RateLimitResponse) -> Vec<Code> {
    answer.statuses.iter().map(DescriptorStatus::code).collect()
}

fn remaining(answer: &RateLimitResponse) -> Vec<u32> {
    answer
        .statuses
        .iter()
        .map(|status| status.limit_remaining)
        .collect()
}

/// Statistics of all rules that are not zero, as `path.stat`.
fn stats(service: &Service) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    service.engine.paths().for_each(|path, sums| {
        for (stat, sum) in RuleStat::ALL.into_iter().zip(sums) {
            all.insert(format!("{path}.{}", stat.name()), sum);
        }
    });
    all.retain(|_, sum| *sum > 0);
    all
}

fn calls(service: &Service, stat: CallStat) -> u64 {
    service.engine.calls().sum(stat)
}

#[test]
fn accounting() {
    each("accounting", |case| {
        let shadow = case["shadow"] == true;
        let rule = match case["limit"].as_u64() {
            Some(limit) => format!(
                "- {{key: k, shadow_mode: {shadow}, rate_limit: {{unit: minute, requests_per_unit: {limit}}}}}"
            ),
            None => "- {key: other}".to_owned(),
        };
        let service = start(&rule, &[]);
        let asking = |hits: u64| {
            let mut asked = descriptor("k:v");
            asked["hits_addend"] = json!(hits);
            request(&[asked], 0)
        };
        // A case with a local cache begins with a key that is in it: one that is over.
        let before = match case["local"].as_bool() {
            Some(true) => case["limit"].as_u64().unwrap(),
            _ => case["before"].as_u64().unwrap_or(0),
        };
        if before > 0 {
            service.ask(&asking(before)).unwrap();
        }
        let earlier = stats(&service);
        let answer = service
            .ask(&asking(case["hits"].as_u64().unwrap_or(1)))
            .unwrap();
        let status = &answer.statuses[0];
        assert_eq!(
            status.code().as_str_name(),
            case["code"].as_str().unwrap(),
            "{case}"
        );
        assert_eq!(
            u64::from(status.limit_remaining),
            case["remaining"].as_u64().unwrap(),
            "{case}"
        );
        let limited = !case["limit"].is_null();
        assert_eq!(status.current_limit.is_some(), limited, "{case}");
        assert_eq!(status.duration_until_reset.is_some(), limited, "{case}");
        let mut want = BTreeMap::new();
        for (name, moved) in case["stats"].as_object().unwrap() {
            let stat = match name.as_str() {
                "total" => "total_hits",
                "over" => "over_limit",
                "near" => "near_limit",
                "within" => "within_limit",
                "shadow" => "shadow_mode",
                "local" => continue,
                other => panic!("{other}"),
            };
            want.insert(format!("d.k.{stat}"), moved.as_u64().unwrap());
        }
        let mut moved = stats(&service);
        for (name, sum) in &mut moved {
            *sum -= earlier.get(name).copied().unwrap_or(0);
        }
        moved.retain(|_, sum| *sum > 0);
        assert_eq!(moved, want, "{case}");
    });
}

#[test]
fn reset() {
    each("reset", |case| {
        let unit = case["unit"].as_str().unwrap();
        let rule = format!("- {{key: k, rate_limit: {{unit: {unit}, requests_per_unit: 9}}}}");
        let service = start(&rule, &[]);
        let now = case["now"].as_u64().unwrap();
        service.clock.set_wall(Timestamp::from_secs(now));
        let answer = ask(&service, &["k:v"]);
        let reset = answer.statuses[0].duration_until_reset.unwrap();
        assert_eq!(
            (reset.seconds, reset.nanos),
            (case["seconds"].as_i64().unwrap(), 0),
            "{case}"
        );
    });
}

/// Descriptors of the service cases: `ok` passes, `over` does not.
const RULES: &str = "\
- {key: ok, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: over, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: over_soft, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: ok_soft, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: over_dark, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: ok_dark, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: free, rate_limit: {unlimited: true}}
- {key: blue, rate_limit: {unit: minute, requests_per_unit: 9}, metadata: {pool: blue}}
- {key: green, rate_limit: {unit: minute, requests_per_unit: 9}, metadata: {pool: green}}
- {key: over_green, rate_limit: {unit: minute, requests_per_unit: 0}, metadata: {pool: green}}
- {key: soft_blue, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 9}, metadata: {pool: blue}}
- {key: six, rate_limit: {unit: minute, requests_per_unit: 6}}
- {key: four, rate_limit: {unit: minute, requests_per_unit: 4}}
- {key: once, rate_limit: {unit: minute, requests_per_unit: 1}}";

const METADATA: (&str, &str) = ("RESPONSE_DYNAMIC_METADATA", "true");
const HEADERS: (&str, &str) = ("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
const QUOTA: (&str, &str) = ("QUOTA_MODE", "true");
const SHADOW: (&str, &str) = ("SHADOW_MODE", "true");

/// The overall code of one request to the rules above.
fn overall(env: &[(&str, &str)], descriptors: &[&str]) -> Code {
    ask(&start(RULES, env), descriptors).overall_code()
}

/// Text of the pool in the merged metadata; none when there is no metadata.
fn pool(answer: &RateLimitResponse) -> Option<String> {
    let fields = &answer.dynamic_metadata.as_ref().unwrap().fields;
    let Kind::StructValue(merged) = fields.get("metadata")?.kind.clone().unwrap() else {
        panic!("{fields:?}")
    };
    match merged.fields["pool"].kind.clone() {
        Some(Kind::StringValue(pool)) => Some(pool),
        other => panic!("{other:?}"),
    }
}

fn headers(answer: &RateLimitResponse) -> Vec<(&str, &str)> {
    let headers = answer.response_headers_to_add.iter();
    headers
        .map(|h| (h.key.as_str(), h.value.as_str()))
        .collect()
}

/// A request that is refused at the door.
fn refused(service: &Service, json: &Value) {
    let earlier = calls(service, CallStat::ServiceError);
    let status = service.ask(&message(REQUEST, json)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    assert_eq!(calls(service, CallStat::ServiceError), earlier + 1);
}

#[test]
fn service_cases() {
    each("service", |case| match id(case) {
        "A01" => {
            let answer = ask(&start(RULES, &[]), &["nothing:x"]);
            assert_eq!(answer.overall_code(), Passed);
            let bare = DescriptorStatus {
                code: Passed.into(),
                ..DescriptorStatus::default()
            };
            assert_eq!(answer.statuses, [bare]);
        }
        "A02" => {
            let answer = ask(&start(RULES, &[]), &["over:x", "nothing:x"]);
            assert_eq!(answer.overall_code(), OverLimit);
            assert_eq!(codes(&answer), [OverLimit, Passed]);
        }
        "A03" => a_refused_reload_changes_nothing(),
        "A05" | "A06" => {
            let service = start(RULES, &[]);
            let (descriptors, want) = match id(case) {
                "A05" => (["over_dark:x", "ok_dark:x"], Passed),
                _ => (["over_dark:x", "over:x"], OverLimit),
            };
            assert_eq!(ask(&service, &descriptors).overall_code(), want, "{case}");
            assert_eq!(calls(&service, CallStat::GlobalShadowMode), 0);
        }
        "A07" => {
            let names = [
                HEADERS,
                ("LIMIT_LIMIT_HEADER", "X-L"),
                ("LIMIT_REMAINING_HEADER", "X-R"),
                ("LIMIT_RESET_HEADER", "X-T"),
            ];
            let rule = "- {key: k, rate_limit: {unit: minute, requests_per_unit: 9}}";
            let service = start(rule, &names);
            service.clock.set_wall(Timestamp::from_secs(3_333));
            service.ask(&request(&[descriptor("k:v")], 9)).unwrap();
            let answer = ask(&service, &["k:v", "nothing:x"]);
            assert_eq!(
                headers(&answer),
                [("X-L", "9"), ("X-R", "0"), ("X-T", "27")]
            );
        }
        "A09" => refused(
            &start(RULES, &[]),
            &json!({"descriptors": [descriptor("ok:x")]}),
        ),
        "A10" => refused(&start(RULES, &[]), &json!({"domain": "d"})),
        "A13" => {
            let answer = ask(&start(RULES, &[]), &["ok:x", "nothing:x", "free:x"]);
            assert_eq!(answer.overall_code(), Passed);
            assert_eq!(remaining(&answer), [8, 0, u32::MAX]);
            let limits: Vec<bool> = answer
                .statuses
                .iter()
                .map(|s| s.current_limit.is_some())
                .collect();
            assert_eq!(limits, [true, false, false]);
            assert_eq!(answer.statuses[2].duration_until_reset, None);
        }
        "A15" => assert_eq!(overall(&[QUOTA], &["over:x", "over:y"]), OverLimit),
        "A17" => assert_eq!(overall(&[], &["ok:x", "over_soft:x"]), OverLimit),
        "A18" => assert_eq!(overall(&[], &["ok:x", "ok_soft:x"]), Passed),
        "A19" => assert_eq!(overall(&[], &["over_soft:x", "over_soft:y"]), OverLimit),
        "A21" | "A22" => {
            let service = start(RULES, &[SHADOW]);
            let other = if id(case) == "A21" {
                "over_soft:y"
            } else {
                "over:x"
            };
            let answer = ask(&service, &["over_soft:x", other]);
            assert_eq!(answer.overall_code(), Passed);
            assert_eq!(codes(&answer), [OverLimit, OverLimit]);
            assert_eq!(calls(&service, CallStat::GlobalShadowMode), 1);
        }
        "A23" => {
            let answer = ask(
                &start(RULES, &[QUOTA, METADATA]),
                &["blue:x", "over_green:x"],
            );
            assert_eq!(answer.overall_code(), Passed);
            assert_eq!(pool(&answer).as_deref(), Some("blue"));
        }
        "A25" => {
            let answer = ask(&start(RULES, &[METADATA]), &["blue:x", "green:x"]);
            assert_eq!(pool(&answer).as_deref(), Some("blue"));
        }
        "A26" => {
            let answer = ask(&start(RULES, &[METADATA]), &["a:b"]);
            let names: Vec<String> = answer
                .dynamic_metadata
                .unwrap()
                .fields
                .into_keys()
                .collect();
            assert_eq!(names, ["descriptors", "domain"]);
        }
        "A27" => {
            let answer = ask(&start(RULES, &[METADATA]), &["soft_blue:x"]);
            assert_eq!(pool(&answer).as_deref(), Some("blue"));
        }
        "A29" => {
            let service = start(RULES, &[METADATA]);
            let answer = service.ask(&request(&[descriptor("ok:x")], 5)).unwrap();
            let fields = answer.dynamic_metadata.unwrap().fields;
            assert_eq!(fields["hitsAddend"].kind, Some(Kind::NumberValue(5.0)));
            assert!(!fields.contains_key("metadata"));
        }
        "A30" => {
            for unit in [0, 99] {
                let service = start(RULES, &[]);
                let mut asked = descriptor("ok:x");
                asked["limit"] = json!({"requests_per_unit": 5, "unit": unit});
                refused(&service, &json!({"domain": "d", "descriptors": [asked]}));
                assert_eq!(stats(&service), BTreeMap::new());
                assert!(service.engine.store().memory().is_empty());
            }
        }
        "A31" => {
            let service = start(RULES, &[HEADERS]);
            let answer = ask(&service, &["six:x", "four:x", "four:y"]);
            assert_eq!(remaining(&answer), [5, 3, 3]);
            assert_eq!(
                headers(&answer)[..2],
                [("RateLimit-Limit", "4"), ("RateLimit-Remaining", "3")]
            );
        }
        "A33" => assert_eq!(overall(&[QUOTA], &["over:x", "nothing:x"]), Passed),
        "A34" => {
            for (hits, want) in [(0, [8, 9, 5]), (3, [6, 9, 5])] {
                let (mut b, mut c) = (descriptor("ok:b"), descriptor("ok:c"));
                b["hits_addend"] = json!(0);
                c["hits_addend"] = json!(4);
                let asked = request(&[descriptor("ok:a"), b, c], hits);
                assert_eq!(remaining(&start(RULES, &[]).ask(&asked).unwrap()), want);
            }
        }
        "A35" => {
            let answer = ask(&start(RULES, &[]), &["once:x", "once:x"]);
            assert_eq!(codes(&answer), [Passed, OverLimit]);
            assert_eq!(remaining(&answer), [0, 0]);
            assert_eq!(answer.overall_code(), OverLimit);
        }
        other => panic!("{other} is not tested: {case}"),
    });
}

fn a_refused_reload_changes_nothing() {
    let service = start(RULES, &[]);
    let reload = |text: &str| {
        let loaded = config::parse(&[("d.yaml", text)], &LoadOptions::default());
        match loaded.into_rules() {
            Ok(rules) => service.engine.install(rules),
            Err(_) => service.engine.calls().count(CallStat::ConfigLoadError),
        }
    };
    assert_eq!(
        codes(&ask(&service, &["over:x", "ok:x"])),
        [OverLimit, Passed]
    );
    reload("domain: d\ndescriptors: [{value: without a key}]");
    let answer = ask(&service, &["ok:x", "over:x"]);
    assert_eq!(codes(&answer), [Passed, OverLimit]);
    assert_eq!(answer.overall_code(), OverLimit);
    reload(&format!("domain: d\ndescriptors:\n{RULES}"));
    assert_eq!(calls(&service, CallStat::ConfigLoadSuccess), 2);
    assert_eq!(calls(&service, CallStat::ConfigLoadError), 1);
    assert_eq!(calls(&service, CallStat::GlobalShadowMode), 0);
}

/// A rule at `k:v` or at `k:v k2:v2` (`*` for any value) of so many per minute.
fn nested(place: &str, name: &str, units: u32, replaces: &[&str]) -> String {
    let replaces: Vec<String> = replaces
        .iter()
        .map(|name| format!("{{name: {name}}}"))
        .collect();
    let limit = format!(
        "rate_limit: {{name: {name}, replaces: [{}], unit: minute, requests_per_unit: {units}}}",
        replaces.join(", ")
    );
    let levels: Vec<String> = place
        .split_whitespace()
        .map(|level| {
            let (key, value) = level.split_once(':').unwrap_or((level, ""));
            format!("key: {key}, value: \"{value}\"")
        })
        .collect();
    match &levels[..] {
        [one] => format!("- {{{one}, {limit}}}"),
        [outer, inner] => format!("- {{{outer}, descriptors: [{{{inner}, {limit}}}]}}"),
        _ => panic!("{place}"),
    }
}

fn replacing(case: &str) -> String {
    let rules = match case {
        "P01" => vec![
            nested("x:* y:ban", "ban", 0, &[]),
            nested("s:p d:ov", "ov", 2, &["ban"]),
        ],
        "P02" => vec![
            nested("x:* y:lim", "lim", 1, &[]),
            nested("s:p d:up", "up", 2, &["lim"]),
        ],
        "P03" => vec![
            nested("x:* y:lim", "lim", 1, &[]),
            nested("s:p d:fk", "fake", 2, &[]),
            nested("c:acc", "acc", 4, &["lim", "fake"]),
        ],
        "P05" => vec![nested("A", "A", 0, &["B"]), nested("B", "B", 0, &["A"])],
        other => panic!("{other} is not tested"),
    };
    rules.join("\n").replace(", value: \"\"", "")
}

#[test]
fn replaces() {
    each("replaces", |case| {
        let service = start(&replacing(id(case)), &[]);
        for call in case["calls"].as_array().unwrap() {
            let sent: Vec<String> = match &call["send"][0] {
                Value::Array(_) => call["send"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|entries| {
                        let entries = entries.as_array().unwrap().iter();
                        entries
                            .map(|e| e.as_str().unwrap())
                            .collect::<Vec<_>>()
                            .join(" ")
                    })
                    .collect(),
                _ => serde_json::from_value(call["send"].clone()).unwrap(),
            };
            let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
            let want: Vec<&str> = match &call["expect"] {
                Value::Array(codes) => codes.iter().map(|code| code.as_str().unwrap()).collect(),
                Value::String(one) if one == "OVER_LIMIT" => vec!["OVER_LIMIT"],
                Value::String(words) if words.contains("overall OK") => vec!["OK"],
                other => panic!("{other}"),
            };
            for (turn, want) in want.into_iter().enumerate() {
                let answer = ask(&service, &sent);
                assert_eq!(
                    answer.overall_code().as_str_name(),
                    want,
                    "{case} {sent:?} {turn}"
                );
            }
        }
    });
}

const PER_MINUTE: &str = "\
- {key: tiny, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: dark, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: each, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: fast, rate_limit: {unit: second, requests_per_unit: 50}}
- {key: a, rate_limit: {unit: minute, requests_per_unit: 20}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: daily, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: files, value: \"files/*\", share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: own, value: \"own/*\", rate_limit: {unit: hour, requests_per_unit: 10}}";

/// Rules `s:1` and `s:2` as quotas of 1 and 2 per minute, each with its name as metadata.
const QUOTAS: &str = "\
- {key: s, value: '1', quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {pool: '1'}}
- {key: s, value: '2', quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}, metadata: {pool: '2'}}";

#[test]
fn integration() {
    each("integration", |case| {
        let service = start(PER_MINUTE, &[]);
        match id(case) {
            "I01" => {
                let json = json!({"domain": "elsewhere", "descriptors": [descriptor("a:x")]});
                let answer = service.ask(&message(REQUEST, &json)).unwrap();
                assert_eq!((answer.overall_code(), answer.statuses.len()), (Passed, 1));
                assert_eq!(answer.statuses[0].current_limit, None);
            }
            "I02" => {
                let answer = ask(&service, &["fast:x"]);
                assert_eq!(
                    (answer.overall_code(), remaining(&answer)),
                    (Passed, vec![49])
                );
                assert_eq!(stats(&service)["d.fast.total_hits"], 1);
            }
            "I03" => {
                for call in 1..=25_u32 {
                    let answer = ask(&service, &["a:x"]);
                    let want = if call <= 20 { Passed } else { OverLimit };
                    assert_eq!(answer.overall_code(), want);
                    assert_eq!(remaining(&answer), [20_u32.saturating_sub(call)]);
                    let over = stats(&service).get("d.a.over_limit").copied();
                    let want = call.checked_sub(20).filter(|over| *over > 0);
                    assert_eq!(over, want.map(u64::from));
                }
            }
            "I04" => {
                for call in 1..=15 {
                    let answer = ask(&service, &["a:x", "b:x"]);
                    let want = if call <= 10 { Passed } else { OverLimit };
                    assert_eq!(answer.overall_code(), want);
                    assert_eq!(remaining(&answer), [20 - call, 10_u32.saturating_sub(call)]);
                }
            }
            "I06" => {
                let reset = || {
                    ask(&service, &["daily:x"]).statuses[0]
                        .duration_until_reset
                        .unwrap()
                };
                let first = reset().seconds;
                service.clock.advance(Span::from_secs(2));
                assert_eq!(reset().seconds, first - 2);
            }
            "I10" => {
                for _ in 0..10 {
                    assert_eq!(ask(&service, &["files:files/a.pdf"]).overall_code(), Passed);
                }
                assert_eq!(
                    ask(&service, &["files:files/b.csv"]).overall_code(),
                    OverLimit
                );
                for n in 0..10 {
                    assert_eq!(remaining(&ask(&service, &[&format!("own:own/{n}")])), [9]);
                }
            }
            "I13" | "I14" => {
                let (key, fourth) = if id(case) == "I13" {
                    ("tiny:x", OverLimit)
                } else {
                    ("dark:x", Passed)
                };
                for want in [Passed, Passed, Passed, fourth, fourth] {
                    assert_eq!(ask(&service, &[key]).overall_code(), want);
                }
            }
            "I15" => {
                for want in [Passed, Passed, OverLimit] {
                    assert_eq!(ask(&service, &["each:v"]).overall_code(), want);
                }
                assert_eq!(stats(&service)["d.each_v.over_limit"], 1);
            }
            "I16" => {
                let service = start(QUOTAS, &[]);
                for want in [Passed, Passed, OverLimit] {
                    assert_eq!(ask(&service, &["s:1", "s:2"]).overall_code(), want);
                }
                service.clock.advance(Span::from_secs(60));
                assert_eq!(ask(&service, &["s:1", "s:2"]).overall_code(), Passed);
            }
            "I17" => assert_eq!(served(&["2"]), ["2", "2"], "theirs: a third"),
            "I18" => assert_eq!(served(&["1", "2"]), ["1", "2", "2"], "theirs: 1 1 2 2 2"),
            other => panic!("{other} is not tested: {case}"),
        }
    });
}

/// Probes all pools at no cost, is served by the one that the metadata names, and debits it; until
/// a probe is refused.
fn served(pools: &[&str]) -> Vec<String> {
    let service = start(QUOTAS, &[METADATA]);
    let probes: Vec<Value> = pools
        .iter()
        .map(|name| {
            let mut probe = descriptor(&format!("s:{name}"));
            probe["hits_addend"] = json!(0);
            probe
        })
        .collect();
    let mut served = Vec::new();
    loop {
        let answer = service.ask(&request(&probes, 0)).unwrap();
        if answer.overall_code() == OverLimit {
            return served;
        }
        let pool = pool(&answer).unwrap();
        ask(&service, &[&format!("s:{pool}")]);
        served.push(pool);
        assert!(served.len() < 20);
    }
}

#[test]
fn differences_on_purpose_are_in_the_readme() {
    let readme = std::fs::read_to_string("README.md").unwrap();
    for (cases, row, why) in ON_PURPOSE {
        println!("{}: {row}: {why}", cases.join(", "));
        assert!(readme.contains(&format!("\n| {row} |")), "{row}");
    }
    for (case, place) in ELSEWHERE {
        println!("{case} elsewhere: {place}");
    }
}

#[test]
fn the_lists_name_cases_that_are_there() {
    let sections = ["accounting", "reset", "service", "replaces", "integration"];
    let all = sections.iter().flat_map(|section| cases(section));
    let all: BTreeSet<String> = all.map(|case| id(&case).to_owned()).collect();
    let listed = ON_PURPOSE.iter().flat_map(|(cases, ..)| cases.iter());
    for case in listed.chain(ELSEWHERE.iter().map(|(case, _)| case)) {
        assert!(all.contains(*case), "{case}");
    }
    assert_eq!(all.len(), 68);
}
