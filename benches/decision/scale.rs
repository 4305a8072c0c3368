//! Many keys, new keys, two threads, one hot key: a fixed window.

use std::{hint::black_box, thread, time::Duration};

use criterion::{BenchmarkId, Criterion};
use porteiro::{engine::Engine, model::time::Clock};

use crate::fixture::{Keys, ask, engine, fill, large_engine};

const RULE: &str = "  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 4000000000}\n";

pub(crate) fn bench(c: &mut Criterion) {
    many_keys(c);
    new_keys(c);
    threads(c);
}

fn many_keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys");
    for (name, count) in [("1k", 1_000), ("100k", 100_000), ("10M", 10_000_000)] {
        let keys = Keys::spread(count);
        let engine = large_engine("independent", RULE);
        fill(&engine, &keys);
        let mut asked = keys.asked();
        group.bench_function(BenchmarkId::new("spread", name), |b| {
            b.iter(|| ask(&engine, asked.next().unwrap()));
        });
        let keys = Keys::hot(count);
        let mut asked = keys.asked();
        group.bench_function(BenchmarkId::new("hot", name), |b| {
            b.iter(|| ask(&engine, asked.next().unwrap()));
        });
    }
}

/// Every key is new: a counter is made. Growth of the tables is in the mean.
fn new_keys(c: &mut Criterion) {
    let keys = Keys::spread(10_000_000);
    let engine = large_engine("independent", RULE);
    let mut all = keys.all();
    c.bench_function("keys/new", |b| {
        b.iter(|| {
            let key = all.next().unwrap_or_else(|| {
                all = keys.all();
                all.next().unwrap()
            });
            ask(&engine, key)
        });
    });
}

/// Time of one decision on each of several threads that decide at once.
fn threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("threads");
    for (name, keys) in [
        ("spread", Keys::spread(100_000)),
        ("hot", Keys::hot(100_000)),
    ] {
        let engine = engine("independent", RULE);
        fill(&engine, &keys);
        for count in [1, 2] {
            group.bench_function(BenchmarkId::new(name, count), |b| {
                b.iter_custom(|each| on_threads(count, each, &engine, &keys));
            });
        }
    }
}

/// The slowest of `count` threads, each of which decides `each` times.
fn on_threads(count: usize, each: u64, engine: &Engine, keys: &Keys) -> Duration {
    let clock = Clock::machine();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                let clock = clock.clone();
                scope.spawn(move || {
                    let each = usize::try_from(each).unwrap();
                    // Threads do not ask in step.
                    let asked = keys.asked().skip(index * 1_000).take(each);
                    let start = clock.now().steady;
                    for key in asked {
                        black_box(ask(engine, key));
                    }
                    start.until(clock.now().steady)
                })
            })
            .collect();
        let spans = threads.into_iter().map(|thread| thread.join().unwrap());
        spans.max().unwrap_or_default().into()
    })
}
