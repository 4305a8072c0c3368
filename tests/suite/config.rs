//! Rule files: accepted and refused as the reference does, and with the same limits.

use std::{collections::BTreeMap, fs};

use porteiro::{
    config::{self, LoadOptions, Loaded},
    model::{key::KeyHasher, request::Entry, time::Timestamp},
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    rules::Rules,
    telemetry::rule::RuleStat,
};
use serde_json::{Value, json};

use crate::{
    support::{REQUEST, Service, message, service},
    yaml,
};

/// Reads rule files, given in order.
fn parse(files: &[String], merge: bool) -> Loaded {
    let names: Vec<String> = (0..files.len()).map(|i| format!("{i}.yaml")).collect();
    let files: Vec<(&str, &str)> = names
        .iter()
        .zip(files)
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let options = LoadOptions {
        merge_domains: merge,
        ..LoadOptions::default()
    };
    config::parse(&files, &options)
}

/// The limits as the recordings list them: path, unit, requests per unit, shadow, quota.
fn limits(rules: &Rules) -> Vec<Value> {
    let mut limits: Vec<Value> = rules
        .rules()
        .iter()
        .map(|rule| {
            let shown = rule.limits.first().map(|limit| limit.shown);
            let unit = shown.and_then(|shown| shown.unit);
            let unit = unit.map_or("UNKNOWN".to_owned(), |unit| unit.name().to_uppercase());
            let requests = shown.map_or(0, |shown| shown.requests_per_unit);
            json!([rule.path, unit, requests, rule.shadow_mode, rule.quota_mode])
        })
        .collect();
    limits.sort_by_key(|limit| limit[0].as_str().unwrap().to_owned());
    limits
}

/// What we refuse on purpose although the reference takes it: the words of the finding, and why.
const ON_PURPOSE: [(&str, &str); 1] = [(
    "has a control character",
    "it would end up in logs, metrics and headers",
)];

/// Compares every line of a recording.
fn compare(path: &str) {
    let text = fs::read_to_string(path).unwrap();
    let (mut equal, mut on_purpose) = (0, BTreeMap::<&str, usize>::new());
    let mut different = Vec::new();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let files: Vec<String> = serde_json::from_value(case["files"].clone()).unwrap();
        let loaded = parse(&files, case["merge"].as_bool().unwrap());
        let findings: Vec<String> = loaded.findings.iter().map(ToString::to_string).collect();
        let ours = match loaded.into_rules() {
            Ok(rules) => json!({"accepted": true, "limits": limits(&rules)}),
            Err(_) => json!({"accepted": false}),
        };
        let mut theirs = json!({"accepted": case["accepted"]});
        if case["accepted"] == true {
            theirs["limits"] = case["limits"].clone();
        }
        let purpose = ON_PURPOSE
            .iter()
            .find(|(words, _)| findings.iter().any(|finding| finding.contains(words)));
        if ours == theirs {
            equal += 1;
        } else if let (Some((words, _)), Value::Bool(false)) = (purpose, &ours["accepted"]) {
            *on_purpose.entry(words).or_default() += 1;
        } else {
            different.push(format!("{}: {theirs} {ours} {findings:#?}", case["id"]));
        }
    }
    let compared = text.lines().count();
    println!("{path}: {compared} compared, {equal} equal, on purpose not: {on_purpose:?}");
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(compared >= 300);
}

#[test]
fn recorded_files_are_taken_and_refused_as_the_reference_does() {
    compare("tests/cases/recorded/configs.jsonl");
    compare("tests/cases/recorded/scalars.jsonl");
}

fn cases() -> Value {
    yaml::read(&fs::read_to_string("tests/cases/envoy-ratelimit.yaml").unwrap())
}

#[test]
fn every_refused_case_is_refused_with_its_place() {
    let cases = cases();
    let refused = cases["config_refused"].as_array().unwrap();
    for case in refused {
        let files: Vec<String> = serde_json::from_value(case["files"].clone()).unwrap();
        let loaded = parse(&files, case["merge"] == true);
        let error = loaded.findings.first().map(ToString::to_string);
        let error = error.unwrap_or_else(|| panic!("{case} is taken"));
        println!("{} {}: {error}", case["id"], case["why"]);
        let words = match case["why"].as_str().unwrap() {
            "empty_domain" => "the domain is missing",
            "duplicate_domain" => "the domain is in 0.yaml already",
            "empty_key" => "the descriptor has no key",
            "duplicate_key" => "is there already at this level",
            "bad_unit" => "unit",
            "replaces_self" => "cannot replace itself",
            "yaml" => "quote",
            "unknown_key" => "unknown field",
            "list_of_non_map" => "is not a mapping",
            "unlimited_with_unit" => "an unlimited rule has no unit",
            "share_without_wildcard" => "neither key nor value is a pattern",
            "bad_scalar" => "out of range or with a fraction",
            other => panic!("no words for {other}"),
        };
        assert!(error.contains(words), "{case}: {error}");
        assert!(error.contains(".yaml:1:"), "{error}");
        assert!(loaded.into_rules().is_err());
    }
    assert_eq!(refused.len(), 14);
}

/// A service with the named configurations of the case file.
fn case_service(cases: &Value, case: &Value) -> (Service, Rules) {
    let names: Vec<&str> = match &case["cfg"] {
        Value::String(name) => vec![name],
        names => names
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect(),
    };
    let text = |name: &&str| cases["configs"][*name].as_str().unwrap().to_owned();
    let files: Vec<String> = names.iter().map(text).collect();
    let merge = case["merge"] == true;
    let by_name = names.iter().map(|name| format!("{name}.yaml"));
    let env = [("MERGE_DOMAIN_CONFIG".to_owned(), merge.to_string())];
    let service = service(
        &by_name.zip(files.clone()).collect(),
        &BTreeMap::from(env),
        Timestamp::ZERO,
    );
    (service, parse(&files, merge).into_rules().unwrap())
}

/// The limit that an answer shows, as the case file writes it.
fn shown(answer: &RateLimitResponse) -> String {
    let status = answer.statuses.first();
    match status.and_then(|status| status.current_limit.as_ref()) {
        Some(limit) => {
            let unit = limit.unit().as_str_name().to_lowercase();
            format!("{}/{unit}", limit.requests_per_unit)
        }
        None if status.is_some_and(|status| status.limit_remaining == u32::MAX) => {
            "unlimited".to_owned()
        }
        None => "none".to_owned(),
    }
}

#[test]
fn every_lookup_finds_its_limit_under_its_name() {
    let cases = cases();
    let lookups = cases["lookup"].as_array().unwrap();
    for case in lookups {
        let (service, rules) = case_service(&cases, case);
        let entries: Vec<(String, String)> =
            serde_json::from_value(case["entries"].clone()).unwrap();
        let json = entries
            .iter()
            .map(|(key, value)| json!({"key": key, "value": value}));
        let mut descriptor = json!({"entries": json.collect::<Vec<_>>()});
        if let Some((requests, unit)) = case["override"].as_str().and_then(|o| o.split_once('/')) {
            descriptor["limit"] = json!({"requests_per_unit": requests.parse::<u32>().unwrap(), "unit": unit.to_uppercase()});
        }
        let request = json!({"domain": case["domain"], "descriptors": [descriptor]});
        let answer = service.ask(&message::<RateLimitRequest>(REQUEST, &request));
        assert_eq!(shown(&answer.unwrap()), case["expect"], "{case}");

        let entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Entry { key, value })
            .collect();
        let domain = rules.domain(case["domain"].as_str().unwrap());
        let found = domain.and_then(|domain| domain.find(&entries));
        if let Some(stat) = case["stat"].as_str() {
            let path = match (&found, case["override"].is_string()) {
                (Some(found), false) => found.stat_path(case["domain"].as_str().unwrap(), &entries),
                _ => counted(&service),
            };
            assert_eq!(path, stat, "{case}");
        }
        if let Some(name) = case["name"].as_str() {
            let limit = &found.as_ref().unwrap().rule.limits[0];
            assert_eq!(limit.name.as_deref(), Some(name), "{case}");
        }
        if let Some(shadow) = case["shadow"].as_bool() {
            assert_eq!(found.as_ref().unwrap().rule.shadow_mode, shadow, "{case}");
        }
        if let Some(metadata) = case["meta"].as_object() {
            assert_eq!(
                found.as_ref().unwrap().rule.metadata.as_ref(),
                Some(metadata),
                "{case}"
            );
        }
        if let Some(shared) = case.get("shared") {
            let steps = found.as_ref().unwrap().steps.iter();
            let patterns = steps.map(|step| {
                if step.is_shared() {
                    &*step.node.value
                } else {
                    ""
                }
            });
            let patterns: Vec<&str> = patterns.collect();
            let none = patterns.iter().all(|pattern| pattern.is_empty());
            let patterns = if none { Value::Null } else { json!(patterns) };
            assert_eq!(&patterns, shared, "{case}");
        }
    }
    assert_eq!(lookups.len(), 60);
}

#[test]
fn a_counter_has_the_same_name_whatever_was_hashed_before_requests_came() {
    const RULES: &str = "domain: edge
descriptors:
- key: tenant
  value: acme
  descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1}
    descriptors: [{key: path, value: /a, rate_limit: {unit: hour, requests_per_unit: 1}}]
  - {key: ip, value: 'cidr:10.0.0.0/8', mask: {ipv4: 24}, rate_limit: {unit: hour, requests_per_unit: 1}}
- key: ip
  value: 10.1.2.3
  rate_limit: {unit: hour, requests_per_unit: 1}
  descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]
- key: files
  value: 'a*'
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 1}
  descriptors: [{key: user, value: x, rate_limit: {unit: hour, requests_per_unit: 1}}]
";
    let rules = || parse(&[RULES.to_owned()], false).into_rules().unwrap();
    let hasher = KeyHasher::random();
    let (plain, keyed) = (rules(), rules().keyed(&hasher));
    let pairs: [&[(&str, &str)]; 8] = [
        &[("tenant", "acme"), ("user", "x")],
        &[("tenant", "acme"), ("user", "x"), ("path", "/a")],
        &[("tenant", "acme"), ("ip", "10.1.2.3")],
        &[("ip", "10.1.2.3")],
        &[("ip", "10.1.2.3"), ("user", "")],
        &[("files", "a*")],
        &[("files", "abc")],
        &[("files", "abc"), ("user", "x")],
    ];
    for pairs in pairs {
        let entry = |(key, value): &(&'static str, &'static str)| Entry { key, value };
        let entries: Vec<_> = pairs.iter().map(entry).collect();
        let domain = plain.domain("edge").unwrap();
        let matched = domain.find(&entries).unwrap();
        let name = matched.hashed(&entries, &domain.named(&hasher));
        for rules in [&plain, &keyed] {
            let domain = rules.domain("edge").unwrap();
            let found = domain.find_hashed(&entries, &hasher).unwrap();
            assert_eq!(found.name, name.finish(), "{pairs:?}");
        }
    }
}

/// The one path that the service has counted under.
fn counted(service: &Service) -> String {
    let mut paths = Vec::new();
    service.engine.paths().for_each(|path, sums| {
        if sums[RuleStat::TotalHits as usize] > 0 {
            paths.push(path.to_owned());
        }
    });
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths.remove(0)
}
