//! What each algorithm costs, what several limits cost, and what a request costs that no rule
//! matches: one thread, 100,000 keys asked for evenly.

use criterion::{BenchmarkId, Criterion};

use crate::fixture::{Keys, ask, engine, fill, user_rule};

const KEYS: u32 = 100_000;

/// Name, limits that let everything through, limits that let one through.
const ALGORITHMS: [(&str, &str, &str); 6] = [
    ("fixed_window", "1000000000/h", "1/d"),
    ("sliding_window", "1000000000/h", "1/d"),
    // It remembers every admission: no more than it can hold.
    ("sliding_log", "100/s", "1/d"),
    ("token_bucket", "1000000000/s", "1/d"),
    ("leaky_bucket", "1000000000/s", "1/d"),
    ("leaky_queue", "1000000000/s", "1/d"),
];

pub(crate) fn bench(c: &mut Criterion) {
    each_algorithm(c);
    several_limits(c);
    no_rule(c);
}

fn limit(algorithm: &str, rate: &str, index: usize) -> String {
    format!("{{name: l{index}, algorithm: {algorithm}, rate: {rate}}}")
}

fn each_algorithm(c: &mut Criterion) {
    let keys = Keys::spread(KEYS);
    let mut group = c.benchmark_group("algorithm");
    for (algorithm, open, closed) in ALGORITHMS {
        for (name, rate) in [("admits", open), ("refuses", closed)] {
            let engine = engine("independent", &user_rule(&[limit(algorithm, rate, 0)]));
            fill(&engine, &keys);
            let mut asked = keys.asked();
            group.bench_function(BenchmarkId::new(algorithm, name), |b| {
                b.iter(|| ask(&engine, asked.next().unwrap()));
            });
        }
    }
}

fn several_limits(c: &mut Criterion) {
    let keys = Keys::spread(KEYS);
    let mut group = c.benchmark_group("limits");
    for count in [1, 4, 16] {
        // The last one of the refusing rule refuses: all are looked at, none is taken.
        for (name, last) in [("admits", "1000000000/s"), ("refuses", "1/d")] {
            let limits: Vec<_> = (0..count)
                .map(|index| {
                    let rate = if index + 1 == count {
                        last
                    } else {
                        "1000000000/s"
                    };
                    limit("token_bucket", rate, index)
                })
                .collect();
            let engine = engine("all_or_nothing", &user_rule(&limits));
            fill(&engine, &keys);
            let mut asked = keys.asked();
            group.bench_function(BenchmarkId::new(count.to_string(), name), |b| {
                b.iter(|| ask(&engine, asked.next().unwrap()));
            });
        }
    }
}

fn no_rule(c: &mut Criterion) {
    let keys = Keys::spread(KEYS);
    let rules = "  - key: other\n    rate_limit: {unit: second, requests_per_unit: 1}\n";
    let engine = engine("independent", rules);
    let mut asked = keys.asked();
    c.bench_function("no_rule", |b| {
        b.iter(|| ask(&engine, asked.next().unwrap()));
    });
}
