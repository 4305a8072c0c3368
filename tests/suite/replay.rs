//! `porteiro replay`: decides as the server does, tells it rightly, and ends with the right code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Output},
};

use porteiro::{
    config::{self, LoadOptions},
    model::time::{Span, Timestamp},
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
    },
    replay::{Replay, decision::Decision},
    rules::Rules,
    trace::{
        self, Trace,
        mapping::{Mapping, MappingOptions},
        order::Order,
        record::Record,
    },
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use crate::support::service;

const OLD: &str = "tests/data/replay/old.yaml";
const NEW: &str = "tests/data/replay/new.yaml";
const TRACE: &str = "tests/data/replay/trace.csv";

fn rules(path: &str) -> Rules {
    let loaded = config::load(Path::new(path), &LoadOptions::default());
    loaded.into_rules().unwrap()
}

/// A request at random, and when it comes: millisecond steps over a minute.
fn request(random: &mut StdRng) -> (u64, RateLimitRequest) {
    let entry = |key: &str, value: String| Entry {
        key: key.to_owned(),
        value,
    };
    let mut descriptors = Vec::new();
    if random.random_bool(0.7) {
        let user = format!("u{}", random.random_range(0..20));
        descriptors.push(RateLimitDescriptor {
            entries: vec![entry("user", user)],
            ..RateLimitDescriptor::default()
        });
    }
    if random.random_bool(0.5) {
        let ip = format!("10.0.0.{}", random.random_range(0..5));
        let path = ["/login", "/"][random.random_range(0..2)];
        descriptors.push(RateLimitDescriptor {
            entries: vec![entry("ip", ip), entry("path", path.to_owned())],
            hits_addend: Some(random.random_range(0..3)),
            is_negative_hits: random.random_bool(0.1),
            ..RateLimitDescriptor::default()
        });
    }
    if descriptors.is_empty() {
        descriptors.push(RateLimitDescriptor {
            entries: vec![entry("tenant", "t".to_owned())],
            ..RateLimitDescriptor::default()
        });
    }
    let request = RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors,
        hits_addend: random.random_range(0..4),
    };
    (random.random_range(0..60_000), request)
}

/// The same as a line of a trace, in the protocol's JSON.
fn line(time: Timestamp, request: &RateLimitRequest) -> String {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|entry| json!({"key": entry.key, "value": entry.value}));
        let mut json = json!({
            "entries": entries.collect::<Vec<_>>(),
            "isNegativeHits": descriptor.is_negative_hits,
        });
        if let Some(hits) = descriptor.hits_addend {
            json["hitsAddend"] = hits.to_string().into();
        }
        json
    });
    let line = json!({
        "time": trace::time::show(time),
        "domain": request.domain,
        "descriptors": descriptors.collect::<Vec<_>>(),
        "hitsAddend": request.hits_addend,
    });
    format!("{line}\n")
}

#[test]
fn a_replay_refuses_what_the_service_refuses_with_its_clock_moved_by_hand() {
    let mut random = StdRng::seed_from_u64(11);
    let start = Timestamp::from_secs(1_714_564_800);
    let requests: Vec<(Timestamp, RateLimitRequest)> = (0..4_000)
        .map(|_| request(&mut random))
        .map(|(millis, request)| (start + Span::from_millis(millis), request))
        .collect();

    // The service, in the order of time.
    let text = fs::read_to_string(OLD).unwrap();
    let files = BTreeMap::from([("old.yaml".to_owned(), text)]);
    let service = service(&files, &BTreeMap::new(), start);
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|index| (requests[*index].0, *index));
    let mut refused_live = BTreeSet::new();
    for index in order {
        let (time, request) = &requests[index];
        service.clock.set_wall(*time);
        let answer = service.ask(request).unwrap();
        if answer.overall_code == i32::from(Code::OverLimit) {
            refused_live.insert(index + 1);
        }
    }

    // The trace, in no order at all.
    let lines: String = requests
        .iter()
        .map(|(time, request)| line(*time, request))
        .collect();
    let mapping = Mapping::new(MappingOptions::default()).unwrap();
    let mut trace = Trace::new(lines.as_bytes(), None, mapping).unwrap();
    let mut replay = Replay::new([rules(OLD)]);
    let mut refused = BTreeSet::new();
    let mut watch = |record: &Record, _: &Decision<'_>| {
        refused.insert(usize::try_from(record.line).unwrap());
    };
    let order = Order::new(requests.len());
    replay
        .run(&mut trace, order, &mut watch, &mut |_| {})
        .unwrap();

    assert_eq!(refused, refused_live);
    let seen = replay.seen();
    assert_eq!((seen.asked, seen.bad, seen.late), (4_000, 0, 0));
    assert!((400..3_600).contains(&refused.len()), "{}", refused.len());
}

/// Runs the program on the trace of this test.
fn replay(args: &[&str], trace: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_porteiro");
    let output = Command::new(program)
        .arg("replay")
        .args(args)
        .arg(trace)
        .output();
    output.unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn the_report_says_who_was_refused_when_and_by_which_limit() {
    let output = replay(&["--config", OLD], TRACE);
    let want = "\
trace: 13 lines, 9 requests, 2024-05-01T12:00:00.000Z to 2024-05-01T12:00:05.000Z
  lines that are no request: 3
    line 5: time: \"soon\" is no time; write 2024-05-01T12:00:00.5Z, or seconds since 1970 such as 1714564800.5
    line 12: no descriptors
    line 13: 4 fields where the first line has 3

rules: tests/data/replay/old.yaml
  3 of 9 requests refused (33.33%)
  requests that no limit applies to (they pass): 1

rule                 limit                asked  refused   share  over, passed  first refusal                    last refusal
-------------------  -------------------  -----  -------  ------  ------------  -------------------------------  -------------------------------
edge.ip.path_/login  2/second                 6        3  50.00%             0  2024-05-01T12:00:00.200Z line 3  2024-05-01T12:00:02.000Z line 8
edge.tenant          100/hour                 2        0   0.00%             1
edge.user            per_user: 30/minute      2        0   0.00%             0

most refused             by                   refusals  first                     last
-----------------------  -------------------  --------  ------------------------  ------------------------
ip=10.0.0.1,path=/login  edge.ip.path_/login         2  2024-05-01T12:00:00.200Z  2024-05-01T12:00:00.300Z
ip=10.0.0.2,path=/login  edge.ip.path_/login         1  2024-05-01T12:00:02.000Z  2024-05-01T12:00:02.000Z
";
    assert_eq!(text(&output.stdout), want, "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn two_sets_of_rules_are_compared() {
    let output = replay(&["--config", OLD, "--config", NEW], TRACE);
    let stdout = text(&output.stdout);
    let difference = stdout.split_once("\ndifference").unwrap().1;
    let want = "\
: 1 newly refused, 0 newly admitted

newly refused  by                  refusals  first                     last
-------------  ------------------  --------  ------------------------  ------------------------
user=a         edge.user per_user         1  2024-05-01T12:00:03.000Z  2024-05-01T12:00:03.000Z
";
    assert_eq!(difference, want);
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let code = |args: &[&str], trace: &str| replay(args, trace).status.code();
    let over = |share| code(&["--config", OLD, "--fail-if-denied-over", share], TRACE);
    // Three of nine.
    assert_eq!(over("33.333334%"), Some(0));
    assert_eq!(over("33.333333%"), Some(1));
    assert_eq!(over("5"), Some(64));
    assert_eq!(code(&["--config", TRACE], TRACE), Some(64));
    assert_eq!(
        code(&["--config", OLD, "--descriptor", "user={u"], TRACE),
        Some(64)
    );
    assert_eq!(
        code(&["--config", OLD], "tests/data/replay/none.csv"),
        Some(66)
    );
    assert_eq!(code(&["--config", OLD], "tests/data"), Some(66));
    assert_eq!(
        code(&["--config", OLD, "--format", "json"], TRACE),
        Some(65)
    );
    assert_eq!(code(&["--config", OLD, "--time", "when"], TRACE), Some(66));
}

#[test]
fn refusals_are_listed_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refusals.jsonl");
    let output = replay(
        &["--config", OLD, "--refusals", file.to_str().unwrap()],
        TRACE,
    );
    assert_eq!(output.status.code(), Some(0));
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    let first = json!({
        "line": 3, "time": "2024-05-01T12:00:00.200Z", "domain": "edge",
        "descriptor": "ip=10.0.0.1,path=/login", "rule": "edge.ip.path_/login",
        "limit": "2/second", "name": null, "retry_after_ms": 800,
    });
    assert_eq!(lines[0], first);
    // 25 at once never fit.
    assert_eq!(lines[2]["retry_after_ms"], Value::Null);
    let nowhere = replay(&["--config", OLD, "--refusals", "/"], TRACE);
    assert_eq!(nowhere.status.code(), Some(74));
}

#[test]
fn an_access_log_of_envoy_is_mapped_by_options() {
    let args = [
        "--config",
        OLD,
        "--descriptor",
        "ip={downstream_remote_address|ip},path={path|path}",
        "--descriptor",
        "user={x-user}",
    ];
    let output = replay(&args, "tests/data/replay/envoy.jsonl");
    let stdout = text(&output.stdout);
    let want = "\
trace: 6 lines, 4 requests, 2024-05-01T12:00:00.100Z to 2024-05-01T12:00:00.900Z
  lines without the fields for any descriptor (nobody would ask): 1
  lines that are no request: 1
    line 4: no JSON object: ";
    assert!(stdout.starts_with(want), "{stdout}");
    assert!(
        stdout.contains("\n  1 of 4 requests refused (25.00%)\n"),
        "{stdout}"
    );
    // The one that began last is refused, not the one that was written last.
    let refused =
        "\nip=10.0.0.1,path=/login  edge.ip.path_/login         1  2024-05-01T12:00:00.900Z";
    assert!(stdout.contains(refused), "{stdout}");
}
