//! Recorded metrics pages of the running reference: the same lines on ours.

use std::{collections::BTreeSet, fs};

use porteiro::{
    model::time::Timestamp,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, rate_limit_service_server::RateLimitService,
    },
    telemetry::page,
};
use serde_json::Value;

use crate::support::{REQUEST, message, now, scenario_service};

#[test]
fn every_recorded_line_is_on_our_page() {
    let text = fs::read_to_string("tests/cases/recorded/metrics.jsonl").unwrap();
    let (mut lines, mut equal, mut different) = (0, 0, Vec::new());
    for line in text.lines() {
        let scenario: Value = serde_json::from_str(line).unwrap();
        let recorded: Vec<String> = serde_json::from_value(scenario["counters"].clone()).unwrap();
        let recorded: BTreeSet<_> = recorded.iter().map(|line| number_as_number(line)).collect();
        let ours = page_of(&scenario);
        lines += recorded.union(&ours).count();
        equal += recorded.intersection(&ours).count();
        let odd = recorded.symmetric_difference(&ours);
        different.extend(odd.map(|line| format!("scenario {}: {line}", scenario["id"])));
    }
    println!("metrics.jsonl: {lines} lines compared, {equal} equal");
    assert!(different.is_empty(), "{different:#?}");
}

fn page_of(scenario: &Value) -> BTreeSet<String> {
    let service = scenario_service(scenario);
    for call in scenario["calls"].as_array().unwrap() {
        service
            .clock
            .set_wall(Timestamp::from_secs(call["now"].as_u64().unwrap()));
        let request: RateLimitRequest = message(REQUEST, &call["request"]);
        let _answer = now(service.rls.should_rate_limit(tonic::Request::new(request)));
    }
    let engine = &service.engine;
    let families = page::reference_families(engine.paths(), engine.calls(), engine.latency());
    let counts = |line: &&str| !line.starts_with('#') && !line.contains("_seconds_bucket");
    let page = page::render(&families);
    let lines = page
        .lines()
        .filter(counts)
        .filter(|line| !line.contains("_seconds_sum"));
    lines.map(number_as_number).collect()
}

/// `4.294967301e+09` and `4294967301` are one number in two spellings.
fn number_as_number(line: &str) -> String {
    let (series, number) = line.rsplit_once(' ').unwrap();
    format!("{series} {}", number.parse::<f64>().unwrap())
}
