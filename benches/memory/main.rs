//! What a live key costs in memory, and how long the slowest insertion, sweep and copy of the
//! largest tables take: `cargo bench --bench memory`.
//!
//! A fresh store takes ten million keys, one after the other; every counter stays live. The
//! resident memory of the process is read at one and at ten million. Then all of it is copied as
//! for a state file, and swept when it has ended. Times are CPU time of the thread, page faults
//! included, so that what else the machine does is not in them; that of insertions is told by the
//! clock on the wall too. A loop that does nothing shows how much of that is the machine's.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on falls over")]

use std::{env, fs, num::NonZeroUsize, process::Command};

use porteiro::{
    model::{
        key::{CounterKey, KeyHasher},
        limit::{Algorithm, Anchor, Calendar, CalendarUnit, Quota},
        time::{Clock, Span, Timestamp},
    },
    pages,
    rules::limit::Limit,
    store::{
        Charge, Charges,
        memory::{MemoryOptions, MemoryStore},
    },
};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MILLION: u64 = 1_000_000;
const MOST: u64 = 10 * MILLION;
/// What nothing may take longer than.
const PAUSE: Span = Span::from_millis(2);

fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let calendar = Calendar {
        unit: CalendarUnit::Year,
        zone: jiff::tz::TimeZone::UTC,
        zone_name: "UTC".into(),
    };
    let fixed = Algorithm::FixedWindow;
    vec![
        ("fixed_window", fixed(Anchor::Clock)),
        ("fixed_window_first_hit", fixed(Anchor::FirstHit)),
        ("fixed_window_last_hit", fixed(Anchor::LastHit)),
        ("fixed_window_calendar", fixed(Anchor::Calendar(calendar))),
        ("sliding_window", Algorithm::SlidingWindow),
        ("token_bucket", Algorithm::TokenBucket),
        ("leaky_bucket", Algorithm::LeakyBucket),
        ("leaky_queue", Algorithm::LeakyQueue),
        ("sliding_log", Algorithm::SlidingLog),
    ]
}

/// Each algorithm in a process of its own: an allocator does not give back all that it was given.
/// Names choose algorithms.
fn main() {
    pages::use_ordinary_pages();
    let asked: Vec<String> = env::args().skip(1).collect();
    let asked: Vec<&str> = asked
        .iter()
        .map(String::as_str)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    if let ["measure", name] = asked[..] {
        let mut algorithms = algorithms().into_iter();
        let (name, algorithm) = algorithms.find(|(known, _)| *known == name).unwrap();
        return measure(name, algorithm);
    }
    println!(
        "algorithm bytes_per_key_1M bytes_per_key_10M counted_10M slowest_insertion_us \
         by_the_clock_us over_2ms slowest_copy_us slowest_sweep_us slowest_nothing_us nothing_over_2ms"
    );
    for (name, _) in algorithms() {
        if asked.is_empty() || asked.contains(&name) {
            let mut child = Command::new(env::current_exe().unwrap());
            let status = child.args(["measure", name]).status();
            assert!(status.unwrap().success());
        }
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
    let start = clock.now().wall;
    let (mut slowest, mut slowest_by_clock) = (Span::ZERO, Span::ZERO);
    let mut pauses = 0;
    let mut bytes = Vec::new();
    let began = cpu();
    let mut before = (began, clock.now());
    for number in 0..MOST {
        let mut hasher = hasher;
        hasher.number(number);
        insert(&store, hasher.finish(), &limit, start);
        let now = (cpu(), clock.now());
        let took = now.0.saturating_sub(before.0);
        slowest = slowest.max(took);
        slowest_by_clock = slowest_by_clock.max(before.1.steady.until(now.1.steady));
        pauses += u32::from(took > PAUSE);
        before = now;
        if number + 1 == MILLION || number + 1 == MOST {
            bytes.push(resident_bytes().saturating_sub(empty) / (number + 1));
            before = (cpu(), clock.now());
        }
    }
    let filled = cpu().saturating_sub(began);
    let counted = u64::try_from(store.bytes()).unwrap() / MOST;
    let (copy, sweep) = (slowest_copy(&store, start), slowest_sweep(&store));
    let (slowest, by_clock) = (micros(slowest), micros(slowest_by_clock));
    let (nothing, nothings) = slowest_nothing(filled);
    println!(
        "{name} {} {} {counted} {slowest} {by_clock} {pauses} {} {} {} {nothings}",
        bytes[0],
        bytes[1],
        micros(copy),
        micros(sweep),
        micros(nothing),
    );
}

fn insert(store: &MemoryStore, key: CounterKey, limit: &Limit, now: Timestamp) {
    let charge = Charge::new(key, limit, 1);
    let charges = Charges::from(charge);
    assert!(store.decide(&charges, now)[0].allowed);
}

/// The slowest of the parts that a snapshot copies, each under one lock.
fn slowest_copy(store: &MemoryStore, now: Timestamp) -> Span {
    let (mut slowest, mut before, mut size) = (Span::ZERO, cpu(), 0);
    store
        .save(now, |part| {
            slowest = slowest.max(cpu().saturating_sub(before));
            size += part.len();
            before = cpu();
            Ok(())
        })
        .unwrap();
    assert!(size as u64 > MOST * 32);
    slowest
}

/// The slowest sweep of a shard of which everything has ended; it takes the lock several times.
fn slowest_sweep(store: &MemoryStore) -> Span {
    let mut slowest = Span::ZERO;
    for shard in 0..store.shards() {
        let before = cpu();
        assert_eq!(store.sweep(shard, Timestamp::MAX), Some(0));
        slowest = slowest.max(cpu().saturating_sub(before));
    }
    slowest
}

/// The slowest pass of a loop that reads the clock and does nothing else for as much CPU time, and
/// how many took too long: what a virtual machine's host does meanwhile is in all of these times.
fn slowest_nothing(for_so_long: Span) -> (Span, u32) {
    let (mut slowest, mut pauses) = (Span::ZERO, 0);
    let began = cpu();
    let mut before = began;
    while before.saturating_sub(began) < for_so_long {
        let now = cpu();
        let took = now.saturating_sub(before);
        slowest = slowest.max(took);
        pauses += u32::from(took > PAUSE);
        before = now;
    }
    (slowest, pauses)
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

/// CPU time of this thread.
fn cpu() -> Span {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap();
    Span::from_nanos(part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec))
}

fn micros(span: Span) -> u64 {
    span.as_nanos().div_ceil(1_000)
}

/// Memory of this process that is in RAM.
fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}
