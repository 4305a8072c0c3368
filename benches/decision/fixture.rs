//! An engine with rules, and the keys that are asked for.

use std::num::NonZeroUsize;

use porteiro::{
    config::{self, LoadOptions},
    engine::{
        Engine, EngineOptions,
        verdict::{Code, Verdict},
    },
    model::{
        key::KeyHasher,
        request::{Entry, Request},
        time::Clock,
    },
    store::memory::{MemoryOptions, MemoryStore},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// The domain of all rules here.
pub(crate) const DOMAIN: &str = "bench";

/// How many draws are made before the timing starts; a measurement repeats them.
const DRAWS: usize = 1 << 20;

/// An engine with counters in memory, as many as it holds unless told otherwise, and the machine's
/// clock. `descriptors` is the list of rules under `descriptors:`, `stacking` the domain's.
pub(crate) fn engine(stacking: &str, descriptors: &str) -> Engine {
    engine_with(MemoryOptions::default(), stacking, descriptors)
}

/// An engine with room for more counters.
pub(crate) fn large_engine(stacking: &str, descriptors: &str) -> Engine {
    let options = MemoryOptions {
        max_keys: NonZeroUsize::new(32_000_000).unwrap(),
        ..MemoryOptions::default()
    };
    engine_with(options, stacking, descriptors)
}

fn engine_with(options: MemoryOptions, stacking: &str, descriptors: &str) -> Engine {
    let engine = Engine::new(
        Clock::machine(),
        KeyHasher::random(),
        MemoryStore::new(options).into(),
        EngineOptions::default(),
    );
    let text = format!("domain: {DOMAIN}\nstacking: {stacking}\ndescriptors:\n{descriptors}");
    let loaded = config::parse(&[("bench.yaml", &text)], &LoadOptions::default());
    engine.install(loaded.into_rules().unwrap());
    engine
}

/// A rule for the entry `user` with these limits, each as `{algorithm: …, rate: …}`.
pub(crate) fn user_rule(limits: &[String]) -> String {
    format!("  - key: user\n    limits: [{}]\n", limits.join(", "))
}

/// Texts `user-00000000`, `user-00000001`, … in one piece of memory: ten million strings would be
/// half a gigabyte of headers.
pub(crate) struct Keys {
    text: String,
    /// Indexes in the order they are asked for.
    order: Vec<u32>,
}

const WIDTH: usize = 13;

impl Keys {
    /// `count` keys, asked for evenly.
    pub(crate) fn spread(count: u32) -> Self {
        let mut rng = StdRng::seed_from_u64(1);
        let order = (0..DRAWS).map(|_| rng.random_range(0..count)).collect();
        Self::new(count, order)
    }

    /// `count` keys, of which one is asked for.
    pub(crate) fn hot(count: u32) -> Self {
        Self::new(count, vec![count / 2; DRAWS])
    }

    fn new(count: u32, order: Vec<u32>) -> Self {
        use std::fmt::Write as _;
        let mut text = String::new();
        for index in 0..count {
            write!(text, "user-{index:08}").unwrap();
        }
        Self { text, order }
    }

    /// A key by its index.
    pub(crate) fn get(&self, index: usize) -> &str {
        &self.text[index * WIDTH..][..WIDTH]
    }

    /// Every key once.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        (0..self.text.len() / WIDTH).map(|index| self.get(index))
    }

    /// The keys in the order they are asked for, over and over.
    pub(crate) fn asked(&self) -> impl Iterator<Item = &str> {
        self.order
            .iter()
            .cycle()
            .map(|index| self.get(*index as usize))
    }
}

/// Asks for `user=<key>` once; true when it passed.
pub(crate) fn ask(engine: &Engine, key: &str) -> bool {
    let mut request = Request::new(DOMAIN);
    request.add([Entry {
        key: "user",
        value: key,
    }]);
    decide(engine, &request)
}

/// Decides a request at the engine's time; true when it passed.
pub(crate) fn decide(engine: &Engine, request: &Request<'_>) -> bool {
    engine.with_installed(|installed| {
        let now = engine.clock().now();
        let mut verdict = Verdict::new();
        engine
            .decide_in_memory(installed, request, now, &mut verdict)
            .unwrap();
        verdict.code == Code::Ok
    })
}

/// Asks for every key once, so that all counters are there.
pub(crate) fn fill(engine: &Engine, keys: &Keys) {
    for key in keys.all() {
        ask(engine, key);
    }
}
