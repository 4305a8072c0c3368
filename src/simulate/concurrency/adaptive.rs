//! S8: laws that find the limit of a service that becomes half as fast for two minutes.

use std::sync::Arc;

use crate::{
    algorithm::concurrency::{law::LawSettings, peers::envoy_gradient, real::real},
    model::{
        lease::{LeaseId, Outcome},
        time::{Span, Timestamp},
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, plain},
        random::{Hold, Random, time},
        statistics::{AtSecond, PerSecond},
        workers::Workers,
    },
};

const OFFERED: f64 = 200.0;
const SECONDS: f64 = 360.0;
const WORKERS: u64 = 25;
const FAST: f64 = 0.25;
const SLOW: f64 = 0.5;
/// Services that start in this time are slow.
const SLOW_PHASE: (f64, f64) = (120.0, 240.0);
/// An answer later than this is no good, and counts as dropped for the law.
const TIMEOUT: Span = Span::from_secs(2);
/// What is looked at: before, during and after.
const PHASES: [(usize, usize); 3] = [(80, 120), (200, 240), (320, 360)];

/// What sets the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// A law of ours, fed with windows of this length, or with each request.
    Law(LawSettings, Option<Span>),
    /// Envoy's gradient, fed with the median of each second.
    Envoy {
        /// The baseline is measured anew after five windows at the floor, instead of being known.
        measured: bool,
    },
}

/// Before, during and after the slow phase.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Good answers per second.
    pub good: [f64; 3],
    /// Mean limit.
    pub limit: [f64; 3],
    /// Mean latency of all answers, in seconds.
    pub latency: [f64; 3],
    /// Limit after each second.
    pub limits: Vec<u64>,
    /// Good answers in each second.
    pub per_second: Vec<u64>,
}

enum Event {
    Arrive,
    Done(Timestamp, LeaseId),
}

/// One run.
pub fn run(what: Rule, seed: u64) -> Figures {
    let mut rule = plain(20, FAST);
    if let Rule::Law(settings, window) = what {
        rule.limit = settings;
        rule.window = window;
    }
    let mut rule = Arc::new(rule);
    let mut envoy = match what {
        Rule::Envoy { measured } => Some(Envoy::new(measured)),
        Rule::Law(..) => None,
    };
    let mut desk = Desk::new(seed);
    let mut workers = Workers::new(WORKERS);
    let mut agenda = Agenda::new();
    let mut services = Random::new(seed, 2);
    for at in Random::new(seed, 1).arrivals(OFFERED, 0.0, SECONDS) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    let mut good = PerSecond::default();
    let mut latencies = [(0.0, 0_u64); 3];
    let mut limits = AtSecond::default();
    while let Some((now, event)) = agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        let started = match event {
            Event::Arrive => match desk.ask_one(&rule, now) {
                Said::Yes(lease) => workers.arrive((now, lease)),
                _ => None,
            },
            Event::Done(arrived, lease) => {
                let latency = now.since(arrived);
                let dropped = latency > TIMEOUT;
                let outcome = if dropped {
                    Outcome::Dropped
                } else {
                    Outcome::Success
                };
                desk.release_as(lease, outcome, now);
                if !dropped {
                    good.add(now);
                }
                let second = usize::try_from(now.as_secs()).unwrap_or(usize::MAX);
                for (phase, sum) in PHASES.iter().zip(&mut latencies) {
                    if (phase.0..phase.1).contains(&second) {
                        sum.0 += latency.as_secs_f64();
                        sum.1 += 1;
                    }
                }
                if let Some(limit) = envoy.as_mut().and_then(|envoy| envoy.done(latency, now)) {
                    let mut changed = (*rule).clone();
                    changed.limit = LawSettings::Fixed(limit);
                    rule = Arc::new(changed);
                    desk.book.set_rule(KEY, &rule, now);
                }
                workers.done()
            }
        };
        if let Some((arrived, lease)) = started {
            let slow = (time(SLOW_PHASE.0)..time(SLOW_PHASE.1)).contains(&now);
            let service = services.hold(Hold::Erlang4(if slow { SLOW } else { FAST }));
            agenda.push(now + service, Turn::Completion, Event::Done(arrived, lease));
        }
        limits.note(now, desk.limit(now));
    }
    Figures {
        good: PHASES.map(|(from, to)| good.mean(from, to)),
        limit: PHASES.map(|(from, to)| limits.mean(from, to)),
        latency: latencies.map(|(sum, count)| sum / real(count.max(1))),
        limits: limits.into_counts(),
        per_second: good.into_counts(),
    }
}

/// Envoy's law beside the book: it sets the rule's limit once a second.
struct Envoy {
    measured: bool,
    limit: u64,
    min_rtt: Span,
    start: Timestamp,
    latencies: Vec<Span>,
    at_floor: u32,
}

const ENVOY_FLOOR: u64 = 3;

impl Envoy {
    fn new(measured: bool) -> Self {
        Self {
            measured,
            limit: 20,
            min_rtt: Span::from_secs_f64(FAST),
            start: Timestamp::ZERO,
            latencies: Vec::new(),
            at_floor: 0,
        }
    }

    fn done(&mut self, latency: Span, now: Timestamp) -> Option<u64> {
        self.latencies.push(latency);
        if now.since(self.start) < Span::from_secs(1) {
            return None;
        }
        self.start = now;
        self.latencies.sort_unstable();
        let median = self.latencies.get(self.latencies.len() / 2).copied()?;
        self.latencies.clear();
        self.limit = envoy_gradient(self.limit, self.min_rtt, median);
        self.at_floor = if self.limit == ENVOY_FLOOR {
            self.at_floor + 1
        } else {
            0
        };
        if self.measured && self.at_floor == 5 {
            self.min_rtt = median;
            self.at_floor = 0;
        }
        Some(self.limit)
    }
}
