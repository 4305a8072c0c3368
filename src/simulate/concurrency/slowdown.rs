//! S3b: the service becomes slow for a minute, behind a rate limit or behind a concurrency limit.

use std::sync::Arc;

use crate::{
    algorithm,
    model::{
        lease::LeaseId,
        limit::{Algorithm, Quota, State},
        time::{Span, Timestamp},
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, Said, plain},
        random::{Random, time},
        statistics::PerSecond,
        workers::Workers,
    },
};

const OFFERED: f64 = 150.0;
const SECONDS: f64 = 120.0;
const WORKERS: u64 = 25;
const FAST: f64 = 0.25;
const SLOW: f64 = 0.5;
/// Services that start in this time are slow.
const SLOW_PHASE: (f64, f64) = (30.0, 90.0);
/// A client no longer wants an answer after this long.
const TIMEOUT: Span = Span::from_secs(2);

/// What stands in front of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A token bucket: so many per second, bursts of ten.
    Rate(u64),
    /// So many in service and in the service's queue.
    Concurrency(u64),
}

/// What came through, per second.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Admitted in the normal phase (5 to 30 s).
    pub admitted_normal: f64,
    /// Admitted in the slow phase (40 to 90 s).
    pub admitted_slow: f64,
    /// Good answers in the normal phase.
    pub good_normal: f64,
    /// Good answers in the slow phase.
    pub good_slow: f64,
    /// Good answers after it (95 to 115 s).
    pub good_after: f64,
    /// Good answers in each second.
    pub per_second: Vec<u64>,
}

enum Event {
    Arrive,
    Done(Timestamp, Option<LeaseId>),
}

/// One run.
pub fn run(guard: Guard, seed: u64) -> Figures {
    let (rate, permits) = match guard {
        Guard::Rate(rate) => (rate, 0),
        Guard::Concurrency(permits) => (0, permits),
    };
    let quota = Quota::new(rate, Span::from_secs(1), 10).ok();
    let mut bucket = State::default();
    let rule = Arc::new(plain(permits, FAST));
    let mut desk = Desk::new(seed);
    let mut workers = Workers::new(WORKERS);
    let mut agenda = Agenda::new();
    for at in Random::new(seed, 1).arrivals(OFFERED, 0.0, SECONDS) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    let (mut admitted, mut good) = (PerSecond::default(), PerSecond::default());
    while let Some((now, event)) = agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        let started = match event {
            Event::Arrive => {
                let lease = match (guard, quota) {
                    (Guard::Rate(_), Some(quota)) => {
                        let bucket = &mut bucket;
                        let kind = Algorithm::TokenBucket;
                        algorithm::take(&kind, quota, bucket, now, 1, false)
                            .allowed
                            .then_some(None)
                    }
                    _ => match desk.ask_one(&rule, now) {
                        Said::Yes(lease) => Some(Some(lease)),
                        _ => None,
                    },
                };
                let Some(lease) = lease else { continue };
                admitted.add(now);
                workers.arrive((now, lease))
            }
            Event::Done(arrived, lease) => {
                if now.since(arrived) <= TIMEOUT {
                    good.add(now);
                }
                if let Some(lease) = lease {
                    desk.release(lease, now);
                }
                workers.done()
            }
        };
        if let Some((arrived, lease)) = started {
            let slow = (time(SLOW_PHASE.0)..time(SLOW_PHASE.1)).contains(&now);
            let service = Span::from_secs_f64(if slow { SLOW } else { FAST });
            agenda.push(now + service, Turn::Completion, Event::Done(arrived, lease));
        }
    }
    Figures {
        admitted_normal: admitted.mean(5, 30),
        admitted_slow: admitted.mean(40, 90),
        good_normal: good.mean(5, 30),
        good_slow: good.mean(40, 90),
        good_after: good.mean(95, 115),
        per_second: good.into_counts(),
    }
}
