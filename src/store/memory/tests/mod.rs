//! What the store promises over many counters; one counter alone is the algorithms' business.

mod bytes;
mod full;
mod reload;
mod stacking;
mod threads;

use std::num::NonZeroUsize;

use super::*;
use crate::{
    model::limit::{Algorithm, Anchor, Calendar, CalendarUnit},
    rules::{limit::Limit, testing::limit},
    store::charges::Role,
};

/// 2023-11-14T22:14:00Z: the start of a minute.
const START: Timestamp = Timestamp::from_secs(1_700_000_040);

const MINUTE: Span = Span::from_secs(60);

fn fixed(anchor: Anchor) -> Algorithm {
    Algorithm::FixedWindow(anchor)
}

/// Every algorithm.
fn algorithms() -> Vec<Algorithm> {
    let calendar = Calendar {
        unit: CalendarUnit::Minute,
        zone: jiff::tz::TimeZone::UTC,
        zone_name: "UTC".into(),
    };
    vec![
        fixed(Anchor::Clock),
        fixed(Anchor::FirstHit),
        fixed(Anchor::LastHit),
        fixed(Anchor::Calendar(calendar)),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue,
    ]
}

/// The limit after a reload that changed its quota.
fn changed(old: &Limit, algorithm: Algorithm, units: u64, period: Span) -> Limit {
    let newest = (old.version, old.algorithm.clone(), old.quota);
    let history = std::iter::once(newest).chain(old.history.iter().cloned());
    Limit {
        version: old.version + 1,
        history: history.collect(),
        ..limit(algorithm, units, period)
    }
}

fn store(max_keys: usize, when_full: WhenFull) -> MemoryStore {
    MemoryStore::new(MemoryOptions {
        max_keys: NonZeroUsize::new(max_keys).unwrap(),
        when_full,
        ..MemoryOptions::default()
    })
}

fn roomy() -> MemoryStore {
    store(1_000_000, WhenFull::Deny)
}

/// The counter of caller `n`; neighbours are in different shards.
fn key(n: u64) -> CounterKey {
    CounterKey::from_bits(u128::from(n) << 32 | u128::from(n))
}

fn charge(caller: u64, limit: &Limit, cost: u64) -> Charge<'_> {
    Charge::new(key(caller), limit, cost)
}

/// A request; each charge is a descriptor of its own.
fn request<'a>(stacking: Stacking, list: &[Charge<'a>]) -> Charges<'a> {
    let numbered = list.iter().enumerate().map(|(descriptor, charge)| Charge {
        descriptor,
        ..*charge
    });
    Charges {
        list: numbered.collect(),
        terms: stacking.into(),
    }
}

impl MemoryStore {
    fn ask(&self, stacking: Stacking, list: &[Charge<'_>], now: Timestamp) -> Outcomes {
        self.decide(&request(stacking, list), now)
    }

    /// One charge alone.
    fn one(&self, charge: Charge<'_>, now: Timestamp) -> Outcome {
        self.ask(Stacking::Independent, &[charge], now)[0]
    }

    fn used(&self, caller: u64, limit: &Limit, now: Timestamp) -> u64 {
        self.one(charge(caller, limit, 0), now).used_before
    }
}

fn passed(outcomes: &[Outcome]) -> Vec<bool> {
    outcomes.iter().map(|outcome| outcome.allowed).collect()
}
