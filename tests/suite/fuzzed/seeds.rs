//! Right input of every kind: what the tests have recorded, and a few of our own.

use std::{collections::BTreeSet, fs, sync::LazyLock};

use porteiro::{
    model::key::KeySecret, proto::envoy::service::ratelimit::v3::RateLimitRequest,
    store::memory::MemoryStore,
};
use prost::Message as _;
use serde_json::Value;

use super::bodies::{self, state::Life};
use crate::{
    serving::ask,
    support::{REQUEST, message},
};

/// Lines of a file of `tests/cases/recorded`.
fn recorded(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(format!("tests/cases/recorded/{name}.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Requests of the recorded decisions, as JSON; one of every shape and size is enough.
fn requests() -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let mut requests = Vec::new();
    for case in recorded("decisions") {
        for call in case["calls"].as_array().unwrap() {
            let request = &call["request"];
            if seen.insert(request.to_string().len()) {
                requests.push(request.clone());
            }
        }
    }
    requests
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Requests of Envoy's protocol.
pub(super) fn messages() -> Vec<Vec<u8>> {
    let mut long = ask("d", "user", "a");
    long.hits_addend = u32::MAX;
    for descriptor in &mut long.descriptors {
        descriptor.hits_addend = Some(u64::MAX);
        descriptor.is_negative_hits = true;
    }
    let own = [
        ask("d", "ip", "10.1.2.3"),
        ask("d", "path", "/x"),
        ask("d", "calendar", "x"),
        ask("d", "lease_id", "one"),
        long,
        RateLimitRequest::default(),
    ];
    let requests = requests();
    let recorded = requests.iter().map(|request| message(REQUEST, request));
    own.into_iter()
        .chain(recorded)
        .map(|message: RateLimitRequest| message.encode_to_vec())
        .collect()
}

/// Bodies of `POST /json`.
pub(super) fn json() -> Vec<Vec<u8>> {
    let mut bodies = texts(&[
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#,
        r#"{"hits_addend":4294967295,"descriptors":[{"limit":{"unit":"DAY"}}]}"#,
        r#"{"descriptors":[{"hitsAddend":"18446744073709551615","isNegativeHits":true}]}"#,
    ]);
    bodies.extend(requests().iter().map(|body| body.to_string().into_bytes()));
    bodies
}

/// Rule files, ours and the reference's, taken and refused.
pub(super) fn rule_files() -> Vec<Vec<u8>> {
    let mut files = texts(&[
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 3}\n",
        "- &a {key: a, value: 'regex:^(x|y)*$', limits: [{rate: 5/s, algorithm: token_bucket, burst: 9}]}\n",
        "concurrency: {limit: 5, lease: 10s}\n? [1, *a]\n: |2-\n  x\n",
        "answer: {headers: [ietf], body: problem_json}\n",
    ]);
    for folder in [
        "tests/e2e/rules",
        "benches/rules",
        "deploy/envoy",
        "deploy/examples/chat/rules",
        "deploy/examples/github-style/rules",
        "deploy/examples/marketplace/rules",
        "deploy/examples/sms-guard/rules",
        "deploy/examples/stripe-style/rules",
    ] {
        for entry in fs::read_dir(folder).unwrap() {
            files.push(fs::read(entry.unwrap().path()).unwrap());
        }
    }
    for name in ["configs", "scalars"] {
        for case in recorded(name) {
            for file in case["files"].as_array().unwrap() {
                files.push(file.as_str().unwrap().as_bytes().to_vec());
            }
        }
    }
    files
}

/// Header fields.
pub(super) fn fields() -> Vec<Vec<u8>> {
    let mut fields = texts(&[
        r#""default";q=100;w=60;pk=:Y2FsbGVy:"#,
        r#""a";r=5;t=30, "b";r=0"#,
        "?1;a=1.5",
    ]);
    let text = fs::read_to_string("tests/cases/peer-vectors.json").unwrap();
    let vectors: Value = serde_json::from_str(&text).unwrap();
    for vector in vectors["structured_fields"].as_array().unwrap() {
        if let Some(input) = vector["input"].as_str() {
            fields.push(input.as_bytes().to_vec());
        }
    }
    fields
}

/// State files without their trailer: of lives that did nothing, little and much, in peace and not,
/// and of one that followed another.
pub(super) fn states() -> Vec<Vec<u8>> {
    static STATES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let secret = KeySecret::new(*b"0123456789abcdef");
        let begin = |memory: MemoryStore| Life::begin(memory, secret, None);
        let mut states = vec![begin(bodies::memory()).save(secret, true)];
        for asked in 1..4 {
            let life = begin(bodies::memory());
            for _ in 0..asked {
                life.ask(1, false);
            }
            states.push(life.save(secret, asked == 2));
        }
        let memory = bodies::memory();
        let left = bodies::state::read(&states[2], &memory).unwrap();
        let life = Life::begin(memory, secret, Some(left));
        life.ask(2, true);
        states.push(life.save(secret, false));
        for state in &mut states {
            state.truncate(state.len() - bodies::state::TRAILER);
        }
        states
    });
    STATES.clone()
}
