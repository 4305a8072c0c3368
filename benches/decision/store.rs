//! The memory store alone: charges in, outcomes out.

use std::num::NonZeroUsize;

use crate::fixture::Keys;
use criterion::{BenchmarkId, Criterion};
use porteiro::{
    model::{
        key::{CounterKey, KeyHasher},
        limit::{Algorithm, Anchor, Quota},
        time::{Clock, Span},
    },
    rules::{Stacking, limit::Limit},
    store::{
        Charge, Charges,
        memory::{MemoryOptions, MemoryStore},
    },
};

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("store");
    let window = limit(Algorithm::FixedWindow(Anchor::Clock));
    for (name, count) in [("1k", 1_000), ("100k", 100_000), ("10M", 10_000_000)] {
        measure(
            &mut group,
            &format!("fixed_window/{name}"),
            &window,
            count,
            1,
        );
    }
    let bucket = limit(Algorithm::TokenBucket);
    for charges in [1, 4, 16] {
        measure(
            &mut group,
            &format!("token_bucket/{charges}"),
            &bucket,
            100_000,
            charges,
        );
    }
}

type Group<'a> = criterion::BenchmarkGroup<'a, criterion::measurement::WallTime>;

/// Requests of `charges` counters each, of one key of `count`.
fn measure(group: &mut Group<'_>, name: &str, limit: &Limit, count: u32, charges: u64) {
    let store = MemoryStore::new(MemoryOptions {
        max_keys: NonZeroUsize::new(32_000_000).unwrap(),
        ..MemoryOptions::default()
    });
    let clock = Clock::machine();
    let hasher = KeyHasher::random();
    let keys = Keys::spread(count);
    let counter = |key: &str| {
        let mut hasher = hasher;
        hasher.text(key);
        hasher.finish()
    };
    for key in keys.all() {
        let _ = store.decide(&ask(counter(key), limit, charges), clock.now().wall);
    }
    let order: Vec<CounterKey> = keys.asked().take(1 << 20).map(counter).collect();
    let mut asked = order.iter().cycle();
    group.bench_function(BenchmarkId::from_parameter(name), |b| {
        b.iter(|| {
            let key = *asked.next().unwrap();
            store.decide(&ask(key, limit, charges), clock.now().wall)
        });
    });
}

pub(crate) fn ask(key: CounterKey, limit: &Limit, count: u64) -> Charges<'_> {
    let charge = |index: u64| {
        Charge::new(
            CounterKey::from_bits(key.bits().wrapping_add(u128::from(index) << 49)),
            limit,
            1,
        )
    };
    Charges {
        list: (0..count).map(charge).collect(),
        terms: if count == 1 {
            Stacking::Independent
        } else {
            Stacking::AllOrNothing
        }
        .into(),
    }
}

pub(crate) fn limit(algorithm: Algorithm) -> Limit {
    let period = Span::from_secs(3_600);
    let quota = Quota::per(1_000_000_000_000, period).unwrap();
    Limit {
        count_denied: true,
        ..Limit::new(algorithm, quota)
    }
}
