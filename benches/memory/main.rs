//! What a live key costs in memory, and how long the slowest insertion takes while the tables grow:
//! `cargo bench --bench memory`.
//!
//! A fresh store takes ten million keys, one after the other; every counter stays live. The
//! resident memory of the process is read at one and at ten million.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on falls over")]

use std::{env, fs, num::NonZeroUsize, process::Command};

use porteiro::{
    model::{
        key::{CounterKey, KeyHasher},
        limit::{Algorithm, Anchor, Quota},
        time::{Clock, Span, Timestamp},
    },
    rules::limit::Limit,
    store::{
        Charge, Charges,
        memory::{MemoryOptions, MemoryStore},
    },
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MILLION: u64 = 1_000_000;

const ALGORITHMS: [(&str, Algorithm); 5] = [
    ("fixed_window", Algorithm::FixedWindow(Anchor::Clock)),
    ("sliding_window", Algorithm::SlidingWindow),
    ("token_bucket", Algorithm::TokenBucket),
    ("leaky_bucket", Algorithm::LeakyBucket),
    ("leaky_queue", Algorithm::LeakyQueue),
];

/// Each algorithm in a process of its own: an allocator does not give back all that it was given.
fn main() {
    let asked = env::args().nth(1);
    if let Some((name, algorithm)) = ALGORITHMS
        .into_iter()
        .find(|(name, _)| asked.as_deref() == Some(name))
    {
        return measure(name, algorithm);
    }
    println!("algorithm bytes_per_key_1M bytes_per_key_10M slowest_insertion_us over_2ms");
    for (name, _) in ALGORITHMS {
        let child = Command::new(env::current_exe().unwrap()).arg(name).status();
        assert!(child.unwrap().success());
    }
}

fn measure(name: &str, algorithm: Algorithm) {
    let empty = resident_bytes();
    let store = MemoryStore::new(MemoryOptions {
        max_keys: NonZeroUsize::new(32_000_000).unwrap(),
        ..MemoryOptions::default()
    });
    let limit = limit(algorithm);
    let hasher = KeyHasher::random();
    let clock = Clock::machine();
    let mut slowest = Span::ZERO;
    let mut pauses = 0;
    let mut before = clock.now();
    let mut bytes = Vec::new();
    for number in 0..10 * MILLION {
        let mut hasher = hasher.clone();
        hasher.number(number);
        insert(&store, hasher.finish(), &limit, before.wall);
        let now = clock.now();
        let took = before.steady.until(now.steady);
        slowest = slowest.max(took);
        pauses += u32::from(took > Span::from_millis(2));
        before = now;
        let keys = number + 1;
        if keys == MILLION || keys == 10 * MILLION {
            bytes.push(resident_bytes().saturating_sub(empty) / keys);
            before = clock.now();
        }
    }
    let slowest = slowest.as_nanos() / 1_000;
    println!("{name} {} {} {slowest} {pauses}", bytes[0], bytes[1]);
}

fn insert(store: &MemoryStore, key: CounterKey, limit: &Limit, now: Timestamp) {
    let charge = Charge::new(key, limit, 1);
    let charges = Charges::from(charge);
    assert!(store.decide(&charges, now)[0].allowed);
}

/// A limit whose counters stay live for the whole measurement: an hour per unit.
fn limit(algorithm: Algorithm) -> Limit {
    let period = Span::from_secs(100 * 3_600);
    let quota = Quota::per(100, period).unwrap();
    Limit {
        count_denied: true,
        ..Limit::new(algorithm, quota)
    }
}

/// Memory of this process that is in RAM.
fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}
