//! A decision asks the allocator for nothing, once the counters of its keys are there.
//!
//! Covered: the bytes of a `RateLimitRequest` are read in place, the rules are found, the counters
//! of the memory store are charged, the verdict is worked out and its statistics are counted; for
//! requests of up to four descriptors and eight limits, on one rule or on several, and eight entries in
//! all, admitted or refused. Not covered are new counters (their table grows), logs of admissions, more limits than
//! that, and the answer on the wire: its bytes are one allocation, headers are more.
#![cfg(test)]

use std::sync::Arc;

use allocation_counter::measure;
use porteiro::{
    api::{
        bounds::Bounds,
        envoy_rls::{AnswerOptions, RateLimit},
        wire::{self, Answer, Asked as _},
    },
    config::{self, LoadOptions},
    engine::{
        Engine, EngineOptions,
        verdict::{Code, Verdict},
    },
    model::{key::KeyHasher, request::Request, time::Clock},
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    store::memory::{MemoryOptions, MemoryStore},
};
use prost::Message as _;

/// Each key under each algorithm, with a limit that lets everything through and one that does not.
const ALGORITHMS: [&str; 5] = [
    "fixed_window",
    "sliding_window",
    "token_bucket",
    "leaky_bucket",
    "leaky_queue",
];
const KEYS: u32 = 1_000;

fn engine(stacking: &str, limit: &str) -> Arc<Engine> {
    let rule = |key: &str| format!("- {{key: {key}, limits: [{limit}]}}\n");
    let rules: String = ["a", "b", "c", "d"].map(rule).concat();
    let nested = format!("- key: tenant\n  descriptors: [{{key: user, limits: [{limit}]}}]\n");
    let eight = [limit; 8].join(", ");
    let stack = format!("- {{key: stack, limits: [{eight}]}}\n");
    let text = format!("domain: edge\nstacking: {stacking}\ndescriptors:\n{rules}{nested}{stack}");
    let engine = Engine::new(
        Clock::machine(),
        KeyHasher::random(),
        MemoryStore::new(MemoryOptions::default()).into(),
        EngineOptions::default(),
    );
    let loaded = config::parse(&[("edge.yaml", &text)], &LoadOptions::default());
    engine.install(loaded.into_rules().unwrap());
    Arc::new(engine)
}

fn message(descriptors: &[&[(&str, &str)]]) -> Vec<u8> {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    };
    request.encode_to_vec()
}

/// Of [`messages`].
const PER_KEY: u32 = 3;

/// For every key one request of a descriptor with two entries, one of four descriptors, and one of a
/// descriptor with eight limits.
fn messages() -> Vec<Vec<u8>> {
    let of_key = |number| {
        let key = format!("somebody-with-a-long-name-{number}");
        let nested = message(&[&[("tenant", "acme"), ("user", &key)]]);
        let four = ["a", "b", "c", "d"].map(|name| [(name, key.as_str())]);
        let four = message(&four.each_ref().map(|pair| &pair[..]));
        [nested, four, message(&[&[("stack", &key)]])]
    };
    (0..KEYS).flat_map(of_key).collect()
}

fn decide(engine: &Engine, message: &[u8]) -> Code {
    let mut request = Request::default();
    wire::read(message, Bounds::default(), &mut request).expect("a plain request");
    let installed = engine.installed();
    let now = engine.clock().now();
    let mut verdict = Verdict::new();
    engine
        .decide_in_memory(&installed, &request, now, &mut verdict)
        .unwrap();
    verdict.code
}

#[test]
fn a_decision_allocates_nothing() {
    let messages = messages();
    for stacking in ["independent", "all_or_nothing"] {
        for algorithm in ALGORITHMS {
            for (rate, expected) in [("1000000000/s", Code::Ok), ("1/d", Code::OverLimit)] {
                let limit = format!("{{algorithm: {algorithm}, rate: {rate}}}");
                let engine = engine(stacking, &limit);
                for message in &messages {
                    decide(&engine, message);
                }
                let mut seen = 0;
                let asked = measure(|| {
                    for message in &messages {
                        seen += u32::from(decide(&engine, message) == expected);
                    }
                });
                assert_eq!(seen, PER_KEY * KEYS, "{stacking} {algorithm} {rate}");
                assert_eq!(asked.count_total, 0, "{stacking} {algorithm} {rate}");
            }
        }
    }
}

#[test]
fn an_answer_allocates_its_bytes() {
    let engine = engine("independent", "{rate: 1000000000/s}");
    let options = AnswerOptions::default();
    let service = Arc::new(RateLimit::new(engine, Bounds::default(), options));
    let ask = |message: &Vec<u8>| service.ask(tonic::Request::new(message.clone()));
    let messages = messages();
    for message in &messages {
        assert!(matches!(ask(message), Answer::Now(Some(Ok(_)))));
    }
    let copies = measure(|| drop(messages.clone())).count_total - 1;
    let asked = measure(|| messages.iter().for_each(|message| drop(ask(message))));
    assert_eq!(copies, u64::from(PER_KEY * KEYS));
    assert_eq!(asked.count_total - copies, u64::from(PER_KEY * KEYS));
}

#[test]
fn the_counter_counts() {
    assert_eq!(
        measure(|| drop(std::hint::black_box(Box::new(1)))).count_total,
        1
    );
}
