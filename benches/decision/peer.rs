//! Beside governor's keyed limiter: the same keys, one thread, 100,000 of them.
//!
//! Both read their clock and answer yes or no. Ours also finds the rule, knows the counter's
//! remainder and keeps the statistics. Two rows are governor's. In `governor`, its keys are strings
//! that are there already. In `governor_of_entries` it starts where ours does, from a domain and
//! the key and value of an entry, and a string is put together of them, as a service has to that
//! limits with it.

use std::{hint::black_box, num::NonZeroU32};

use criterion::Criterion;
use governor::{Quota, RateLimiter};
use porteiro::{
    engine::Engine,
    model::request::{Entry, Request},
};

use crate::fixture::{DOMAIN, Keys, ask, decide, engine, fill};

const KEYS: u32 = 100_000;

/// The algorithm that governor has.
const BUCKET: &str = "  - key: user\n    limits: [{algorithm: token_bucket, rate: 1000000000/s}]\n";
const WINDOW: &str = "  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n";
const TENANT: &str = "  - key: tenant\n    descriptors:\n      - key: user\n        \
    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n";

pub(crate) fn bench(c: &mut Criterion) {
    let keys = Keys::spread(KEYS);
    let mut group = c.benchmark_group("peer");

    let quota = Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap());
    let limiter: RateLimiter<String, _, _> = RateLimiter::keyed(quota);
    for key in keys.all() {
        let _ = limiter.check_key(&key.to_owned());
    }
    let named: RateLimiter<String, _, _> = RateLimiter::keyed(quota);
    for key in keys.all() {
        let _ = named.check_key(&name(key));
    }
    let strings: Vec<String> = keys.asked().take(1 << 20).map(str::to_owned).collect();
    let mut asked = strings.iter().cycle();
    group.bench_function("governor", |b| {
        b.iter(|| limiter.check_key(asked.next().unwrap()).is_ok());
    });

    let mut asked = strings.iter().cycle();
    group.bench_function("governor_of_entries", |b| {
        b.iter(|| named.check_key(&name(asked.next().unwrap())).is_ok());
    });

    for (name, rule) in [("token_bucket", BUCKET), ("fixed_window", WINDOW)] {
        let engine = engine("independent", rule);
        fill(&engine, &keys);
        let mut asked = strings.iter().cycle();
        group.bench_function(name, |b| {
            b.iter(|| ask(&engine, asked.next().unwrap()));
        });
    }

    let engine = engine("independent", TENANT);
    for key in keys.all() {
        ask_two(&engine, key);
    }
    let mut asked = strings.iter().cycle();
    group.bench_function("fixed_window_two_entries", |b| {
        b.iter(|| ask_two(&engine, asked.next().unwrap()));
    });
}

/// The key for a descriptor with one entry: its parts with zero bytes between them, made with one
/// allocation.
fn name(user: &str) -> String {
    let key = black_box("user");
    let mut name = String::with_capacity(DOMAIN.len() + key.len() + user.len() + 2);
    for part in [black_box(DOMAIN), "\0", key, "\0", user] {
        name.push_str(part);
    }
    name
}

/// One descriptor with two entries.
fn ask_two(engine: &Engine, user: &str) -> bool {
    let mut request = Request::new(DOMAIN);
    let entry = |key, value| Entry { key, value };
    request.add([entry("tenant", "acme"), entry("user", user)]);
    decide(engine, &request)
}
