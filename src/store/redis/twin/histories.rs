//! Random histories: the memory store is the oracle.

use std::{fmt::Write as _, sync::Arc};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use smallvec::SmallVec;

use super::fake::Fake;
use crate::{
    model::{
        key::CounterKey,
        limit::{Algorithm, Anchor, Calendar, CalendarUnit, Quota},
        time::{Span, Timestamp},
    },
    rules::{Stacking, limit::Limit},
    store::{
        charges::{Charge, Charges, Outcomes, Role, Terms},
        memory::{MemoryOptions, MemoryStore},
        redis::{batch::Wanted, reply::in_micros},
    },
};

/// 2026-03-29 00:59:59 UTC: a second before clocks in Europe go forward.
const START: Timestamp = Timestamp::from_secs(1_774_745_999);

fn limit(algorithm: Algorithm, quota: Quota, count_denied: bool) -> Limit {
    Limit {
        count_denied,
        ..Limit::new(algorithm, quota)
    }
}

fn calendar(unit: CalendarUnit, zone: &str) -> Algorithm {
    Algorithm::FixedWindow(Anchor::Calendar(Calendar {
        unit,
        zone: jiff::tz::TimeZone::get(zone).unwrap(),
        zone_name: Arc::from(zone),
    }))
}

fn algorithms() -> Vec<Algorithm> {
    vec![
        Algorithm::FixedWindow(Anchor::Clock),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::FixedWindow(Anchor::LastHit),
        calendar(CalendarUnit::Hour, "Europe/Lisbon"),
        calendar(CalendarUnit::Day, "Europe/Berlin"),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue,
    ]
}

/// Quotas small and odd, and large ones whose products do not fit a double.
fn quota(random: &mut StdRng) -> Quota {
    let large = random.random_bool(0.3);
    let units = if large {
        random.random_range(1..1 << 45)
    } else {
        random.random_range(0..12)
    };
    let micros = match random.random_range(0..4) {
        0 => random.random_range(1..10),
        1 => random.random_range(1..5_000_000),
        2 => random.random_range(1..100) * 1_000_000,
        _ => random.random_range(1..400) * 86_400_000_000,
    };
    let burst = if large {
        random.random_range(1..=units.max(1) * 2)
    } else {
        random.random_range(0..15)
    };
    Quota::new(units, Span::from_micros(micros), burst)
        .unwrap_or_else(|_| Quota::per(5, Span::from_secs(60)).unwrap())
}

struct History {
    random: StdRng,
    limits: Vec<Limit>,
    now: Timestamp,
    /// The clock may step back; then keys do not expire meanwhile (a server whose clock stepped
    /// forward too far has dropped what it thought was over), and nobody only looks: in memory that
    /// notes where the clock was, in Redis it writes nothing.
    steps_back: bool,
}

impl History {
    fn new(seed: u64, algorithms: &[Algorithm]) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let limits = (0..random.random_range(1..4))
            .map(|_| {
                let algorithm = algorithms[random.random_range(0..algorithms.len())].clone();
                Limit {
                    hold: random.random_bool(0.5),
                    ..limit(algorithm, quota(&mut random), random.random_bool(0.5))
                }
            })
            .collect();
        Self {
            random,
            limits,
            now: START,
            steps_back: seed % 2 == 1,
        }
    }

    /// Mostly forward by a part of a period, often to an edge, seldom back.
    fn step(&mut self) {
        let index = self.random.random_range(0..self.limits.len());
        let quota = self.limits[index].quota;
        let period = quota.period().as_nanos() / 1_000;
        let by = |micros: u64| Span::from_micros(micros);
        let kinds = if self.steps_back { 20 } else { 17 };
        self.now = match self.random.random_range(0..kinds) {
            0..6 => self.now,
            6..10 => self.now + by(self.random.random_range(0..=period / quota.units().max(1))),
            10..14 => self.now + by(self.random.random_range(0..=period)),
            14 => self.now + by(period * self.random.random_range(1..3)),
            15 | 16 => self.now.floor(quota.period()) + quota.period(),
            17 => self.now - by(1),
            18 => self.now - by(self.random.random_range(0..=period)),
            _ => self.now - by(self.random.random_range(0..=period.min(1 << 40) * 3)),
        };
        let micro = Span::from_micros(1);
        self.now = self.now.floor(micro);
    }

    fn cost(&mut self, limit: usize) -> u64 {
        let quota = self.limits[limit].quota;
        let most = quota.units().max(quota.burst()).max(1);
        let least = u64::from(self.steps_back);
        let cost = match self.random.random_range(0..8) {
            0 => 0,
            1 => most,
            2 => self.random.random_range(0..=most + 1),
            3 => self.random.random_range(0..=most.div_ceil(3)),
            _ => 1,
        };
        cost.max(least)
    }

    fn wanted(&mut self) -> Wanted {
        if self.random.random_bool(0.1) && !self.steps_back {
            Wanted::Look
        } else {
            Wanted::Decision
        }
    }

    fn request(&mut self) -> Charges<'static> {
        // Leaked: a test's limits live as long as its charges.
        let limits: &'static [Limit] = Box::leak(self.limits.clone().into_boxed_slice());
        let together = self.random.random_bool(0.4);
        let mut descriptor = 0;
        let mut role = Role::Enforced;
        let mut list: SmallVec<[Charge<'static>; 8]> = SmallVec::new();
        for place in 0..self.random.random_range(1..4) {
            if place == 0 || self.random.random_bool(0.6) {
                descriptor += 1;
                let quota = self.random.random_bool(0.3);
                role = if quota { Role::Quota } else { Role::Enforced };
            }
            let index = self.random.random_range(0..limits.len());
            // The memory store tells keys apart by their upper 96 bits.
            let n = index as u128 * 2 + self.random.random_range(0..2);
            let key = CounterKey::from_bits(n << 32);
            // What a refund leaves of an outcome that was looked up before it in the same request
            // is not defined: the memory store tells one, the script another.
            let alone = !list.iter().any(|charge| charge.key == key);
            list.push(Charge {
                key,
                limit: &limits[index],
                cost: self.cost(index),
                refund: self.random.random_bool(0.15) && (alone || !together),
                role,
                shadow: self.random.random_bool(0.2),
                descriptor,
            });
        }
        let period = limits[0].quota.period().as_nanos() / 1_000;
        let patience = self.random.random_range(0..=period.min(1 << 40));
        let terms = Terms {
            patience: self
                .random
                .random_bool(0.6)
                .then_some(Span::from_micros(patience)),
            stacking: if together {
                Stacking::AllOrNothing
            } else {
                Stacking::Independent
            },
            quota_passed: self.random.random_bool(0.1),
            tell_more: self.random.random_bool(0.3),
            ..Terms::default()
        };
        Charges { list, terms }
    }
}

/// A request in a few lines, for a failure.
fn told(charges: &Charges<'_>) -> String {
    let mut text = format!(
        "{:?} {} {}",
        charges.terms.stacking, charges.terms.quota_passed, charges.terms.tell_more
    );
    for charge in &charges.list {
        let (key, limit) = (charge.key.bits(), charge.limit);
        let (cost, refund, shadow) = (charge.cost, charge.refund, charge.shadow);
        let _ = write!(
            text,
            "\n  key {key} cost {cost} refund {refund} shadow {shadow} {:?} in {} {:?} {:?} {}",
            charge.role, charge.descriptor, limit.algorithm, limit.quota, limit.count_denied
        );
    }
    text
}

fn run(histories: u64, steps: usize, algorithms: &[Algorithm]) {
    let server = Fake::new();
    for seed in 0..histories {
        let mut history = History::new(seed, algorithms);
        let memory = MemoryStore::new(MemoryOptions::default());
        server.begin(!history.steps_back);
        for step in 0..steps {
            history.step();
            let requests: Vec<(Charges<'_>, Wanted)> = (0..history.random.random_range(1..4))
                .map(|_| (history.request(), history.wanted()))
                .collect();
            let theirs = server.ask(&requests, history.now);
            for ((charges, wanted), theirs) in requests.iter().zip(theirs) {
                let ours: Outcomes = match wanted {
                    Wanted::Decision => memory.decide(charges, history.now),
                    Wanted::Look => memory.look(charges, history.now),
                };
                let ours: Outcomes = ours.into_iter().map(in_micros).collect();
                assert_eq!(
                    theirs,
                    ours,
                    "history {seed}, step {step}, at {:?}: {}",
                    history.now,
                    told(charges)
                );
            }
        }
    }
}

#[test]
fn fixed_windows_agree() {
    run(1_000, 15, &algorithms()[..3]);
}

#[test]
fn calendar_windows_agree() {
    run(200, 15, &algorithms()[3..5]);
}

#[test]
fn sliding_logs_agree() {
    run(1_000, 15, &algorithms()[5..6]);
}

#[test]
fn sliding_windows_agree() {
    run(1_000, 15, &algorithms()[6..7]);
}

#[test]
fn buckets_agree() {
    run(2_000, 15, &algorithms()[7..]);
}

#[test]
fn all_algorithms_agree_side_by_side() {
    run(1_000, 15, &algorithms());
}
