//! What a decision has to do whatever it decides, each thing alone: 100,000 keys, one thread.
//!
//! *together* is clock, key and counter in turn, with this hash and this store: what a decision takes
//! beyond it goes to rules, statistics and the verdict.

use std::hint::black_box;

use criterion::Criterion;
use parking_lot::Mutex;
use porteiro::{
    model::{
        key::{CounterKey, KeyHasher},
        limit::{Algorithm, Anchor},
        time::{Clock, Timestamp},
    },
    store::{
        Charge, Terms,
        memory::{MemoryOptions, MemoryStore},
    },
};

use crate::{
    fixture::Keys,
    store::{ask, limit},
};

const KEYS: u32 = 100_000;

pub(crate) fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("parts");
    let clock = Clock::machine();
    group.bench_function("clock", |b| b.iter(|| clock.now()));

    let hasher = KeyHasher::random();
    let counter = |value: &str| {
        let mut hasher = black_box(hasher);
        hasher.text(black_box("user"));
        hasher.text(value);
        hasher.finish()
    };
    let keys = Keys::spread(KEYS);
    // One behind the other in memory, as beside governor.
    let values: Vec<String> = keys.asked().take(1 << 20).map(str::to_owned).collect();
    let mut asked = values.iter().cycle();
    group.bench_function("key", |b| b.iter(|| counter(asked.next().unwrap())));

    let lock = Mutex::new(0_u64);
    group.bench_function("lock", |b| b.iter(|| *black_box(&lock).lock() += 1));

    let window = limit(Algorithm::FixedWindow(Anchor::Clock));
    let store = MemoryStore::new(MemoryOptions::default());
    let now = clock.now().wall;
    for key in keys.all() {
        let _ = store.decide(&ask(counter(key), &window, 1), now);
    }
    let decide = |key: CounterKey, now: Timestamp| {
        store.decide_one(Terms::default(), &Charge::new(key, &window, 1), now)
    };
    let order: Vec<CounterKey> = values.iter().map(|value| counter(value)).collect();
    let hot = [order[0]];
    for (name, order) in [("counter_hot", &hot[..]), ("counter", &order)] {
        let mut asked = order.iter().cycle();
        group.bench_function(name, |b| b.iter(|| decide(*asked.next().unwrap(), now)));
    }

    let mut asked = values.iter().cycle();
    group.bench_function("together", |b| {
        b.iter(|| decide(counter(asked.next().unwrap()), clock.now().wall));
    });
}
