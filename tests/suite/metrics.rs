//! The metrics page: the lines that the running reference had, and the list of all names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use porteiro::{
    model::time::Timestamp,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, rate_limit_service_server::RateLimitService,
    },
    telemetry::page,
};
use serde_json::Value;

use crate::{
    process::{File, Serving},
    support::{REQUEST, message, now, scenario_service},
};

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

/// Names and types of all metrics, one a line, `later` behind those that only show when something
/// rare has happened.
pub(crate) const NAMES: &str = include_str!("../data/metrics.txt");

const RULES: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: work, concurrency: {limit: 1}}
";

/// One HTTP call; head and body of the answer.
fn call(at: &str, head: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    let length = body.len();
    write!(
        stream,
        "{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn ask(serving: &Serving, domain: &str, key: &str) -> String {
    let body = format!(
        r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"{key}","value":"a"}}]}}]}}"#
    );
    let (head, _) = call(&serving.http, "POST /json HTTP/1.1", &body);
    head.split(' ').nth(1).unwrap().to_owned()
}

/// The page of a process that passed, refused and let its rules be loaded.
fn used_page(name: &str, args: &[&str]) -> (Serving, String) {
    let file = File::new(name, RULES);
    let mut serving = Serving::listening(&[args, &["--config", file.path()]].concat(), &[]);
    serving.line_with("rules loaded");
    for (domain, key, status) in [
        ("d", "k", "200"),
        ("d", "k", "429"),
        ("d", "dark", "200"),
        ("d", "dark", "200"),
        ("d", "work", "200"),
        ("", "work", "400"),
    ] {
        assert_eq!(ask(&serving, domain, key), status, "{domain} {key}");
    }
    let (_, page) = call(&serving.admin, "GET /metrics HTTP/1.1", "");
    (serving, page)
}

fn types(page: &str) -> BTreeMap<String, String> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

#[test]
fn the_list_of_names_is_that_of_a_used_process() {
    let (_memory, mut page) = used_page("metrics-names", &[]);
    // Nobody listens there: decisions are made in memory instead.
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let args = [
        "--store",
        "redis://127.0.0.1:1",
        "--state",
        state.to_str().unwrap(),
    ];
    let (_shared, more) = used_page("metrics-shared", &args);
    page.push_str(&more);
    porteiro::server::xds::Feed::default().render(&mut page);
    porteiro::telemetry::spans::export::Counts::default().render(&mut page);
    let seen = types(&page);
    let mut listed = BTreeMap::new();
    let source = concat!(
        include_str!("../../src/engine/metrics/mod.rs"),
        include_str!("../../src/engine/metrics/leases.rs"),
        include_str!("../../src/engine/metrics/tables.rs"),
        include_str!("../../src/telemetry/page.rs")
    );
    for line in NAMES.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [name, kind] => {
                listed.insert(name.to_owned(), kind.to_owned());
            }
            [name, _, "later"] => assert!(source.contains(name) && !seen.contains_key(name)),
            _ => panic!("{line}"),
        }
    }
    let text = |types: &BTreeMap<String, String>| {
        let lines = types.iter().map(|(name, kind)| format!("{name} {kind}\n"));
        lines.collect::<String>()
    };
    assert_eq!(text(&seen), text(&listed));
}

#[test]
fn ours_tell_what_happened() {
    let (_serving, page) = used_page("metrics-ours", &[]);
    for line in [
        "porteiro_decisions_total{decision=\"pass\"} 4",
        "porteiro_decisions_total{decision=\"refuse\"} 1",
        "porteiro_refusals_total{rule=\"d.k\",reason=\"rate\"} 1",
        "porteiro_decision_seconds_count 1",
        "porteiro_store_keys 2",
        "porteiro_store_evicted_total 0",
        "porteiro_store_roomless_total 0",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
    }
    let info = page
        .lines()
        .find(|l| l.starts_with("porteiro_config_info{"));
    let hash = info.unwrap().split('"').nth(1).unwrap();
    assert_eq!(hash.len(), 16);
}

#[test]
fn openmetrics_comes_to_whom_asks_for_it() {
    let (serving, page) = used_page("metrics-open", &[]);
    let head = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0";
    let (head, open) = call(&serving.admin, head, "");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(open.ends_with("# EOF\n"));
    assert!(open.contains("# TYPE porteiro_decisions counter\nporteiro_decisions_total{"));
    assert!(open.contains("# TYPE ratelimit_service_total_requests unknown\n"));
    let series = |page: &str| -> BTreeSet<String> {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
            .collect()
    };
    assert_eq!(series(&open), series(&page));
}

/// Every metric that a text names, without what a histogram adds.
fn named(text: &str) -> BTreeSet<String> {
    let name = regex::Regex::new(r"\b(?:porteiro|ratelimit)_[a-z_0-9]+").unwrap();
    let base = |found: regex::Match<'_>| {
        let found = found.as_str();
        let ends = ["_bucket", "_sum", "_count"];
        let base = ends.iter().find_map(|end| found.strip_suffix(end));
        base.unwrap_or(found).to_owned()
    };
    name.find_iter(text).map(base).collect()
}

/// The expressions of a document, whatever is around them.
fn expressions(document: &Value, found: &mut Vec<String>) {
    match document {
        Value::Object(map) => {
            found.extend(map.get("expr").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| expressions(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn dashboard_and_alerts_name_metrics_that_there_are() {
    let listed: BTreeSet<String> = NAMES
        .lines()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    let dashboard = fs::read_to_string("deploy/grafana/porteiro.json").unwrap();
    let mut panels = Vec::new();
    expressions(&serde_json::from_str(&dashboard).unwrap(), &mut panels);
    let alerts = fs::read_to_string("deploy/prometheus/alerts.yaml").unwrap();
    let rules = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let rules: Vec<String> = rules.map(str::to_owned).collect();
    assert!(
        panels.len() > 30 && rules.len() > 10,
        "{panels:?} {rules:?}"
    );
    let of_fleet = |panel: &&String| panel.contains("porteiro_shared_concurrency_limit{");
    assert_eq!(panels.iter().filter(of_fleet).count(), 1);
    for expression in panels.iter().chain(&rules) {
        let names = named(expression);
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            assert!(listed.contains(&name), "{name} in {expression}");
            // Every replica tells what is true of all; only who waits is its own.
            let shared = name.strip_prefix("porteiro_shared_concurrency_");
            if let Some(gauge) = shared {
                let how = if gauge == "waiters" {
                    "sum by"
                } else {
                    "max by"
                };
                assert!(expression.starts_with(how), "{expression}");
            }
        }
    }
}
