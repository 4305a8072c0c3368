//! S9: a burst on top of a load that nearly fills the limit. When should refused callers return?

use std::sync::Arc;

use crate::{
    algorithm::concurrency::real::real,
    model::{
        lease::{Holder, LeaseId},
        time::{Span, Timestamp},
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, knowing, plain},
        random::{Hold, Random, time},
        statistics::{percentile, share},
    },
    store::lease::{Ask, Item},
};

const PERMITS: u64 = 30;
const HOLD: f64 = 0.25;
const OFFERED: f64 = 90.0;
const SECONDS: f64 = 60.0;
const BURST: u32 = 300;
const BURST_AT: f64 = 10.0;
/// A request gives up when its next attempt would come later than this after its birth.
const PATIENCE: Span = Span::from_secs(10);
const END: f64 = 70.0;

/// How long a refused caller stays away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Always the same.
    Fixed(f64),
    /// Exponential up to 2 s, any part of it.
    FullJitter,
    /// Exponential up to 2 s, the upper half of it.
    EqualJitter,
    /// As the book says: a slot of the virtual queue. With the mean hold given, or estimated as in
    /// production.
    Hint {
        /// The mean hold is estimated.
        estimated: bool,
    },
    /// The number of refused requests that have not come back, times S/C.
    Count,
}

/// What became of the requests.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Attempts per request.
    pub attempts: f64,
    /// Requests that gave up.
    pub failed: u64,
    /// Requests in all.
    pub requests: u64,
    /// 99th percentile of the time from birth to admission, in seconds.
    pub p99_wait: f64,
    /// When the last request of the burst was admitted, in seconds after the burst.
    pub drained: f64,
    /// Mean part of the limit in use during the 5 s after the burst.
    pub admitted_after_burst: f64,
}

#[derive(Clone, Copy)]
struct Request {
    number: u64,
    born: Timestamp,
    refusals: i32,
    of_burst: bool,
}

enum Event {
    Try(Request),
    End(LeaseId),
}

/// One run.
pub fn run(policy: Policy, seed: u64) -> Figures {
    let rule = plain(PERMITS, HOLD);
    let estimated = policy == (Policy::Hint { estimated: true });
    let rule = Arc::new(if estimated { rule } else { knowing(rule) });
    let mut desk = Desk::new(seed);
    let mut agenda = Agenda::new();
    let (mut holds, mut chance) = (Random::new(seed, 2), Random::new(seed, 3));
    let mut requests = 0;
    for born in Random::new(seed, 1).arrivals(OFFERED, 0.0, SECONDS) {
        requests += 1;
        let request = Request {
            number: requests,
            born,
            refusals: 0,
            of_burst: false,
        };
        agenda.push(born, Turn::Arrival, Event::Try(request));
    }
    let mut spread = Random::new(seed, 4);
    for _ in 0..BURST {
        requests += 1;
        let born = time(BURST_AT);
        let request = Request {
            number: requests,
            born,
            refusals: 0,
            of_burst: true,
        };
        let first = time(BURST_AT + 0.05 * spread.uniform());
        agenda.push(first, Turn::Arrival, Event::Try(request));
    }
    let holder = Holder {
        id: "clients".into(),
        instance: "".into(),
    };
    let (mut attempts, mut failed, mut away) = (0_u64, 0_u64, 0_u64);
    let (mut waits, mut drained, mut after_burst) = (Vec::new(), 0.0, 0_u64);
    while let Some((now, event)) = agenda.pop() {
        if now >= time(END) {
            break;
        }
        let request = match event {
            Event::End(lease) => {
                desk.release(lease, now);
                continue;
            }
            Event::Try(request) => request,
        };
        attempts += 1;
        away -= u64::from(request.refusals > 0);
        let id = request.number.to_le_bytes();
        let items = [Item::one(KEY, &rule)];
        let ask = Ask {
            holder: holder.clone(),
            request_id: &id,
            ..Ask::new(&items)
        };
        match desk.ask(&ask, now) {
            Said::Yes(lease) => {
                waits.push(now.since(request.born).as_secs_f64());
                if request.of_burst {
                    drained = now.since(time(BURST_AT)).as_secs_f64();
                }
                after_burst += u64::from((time(10.0)..time(15.0)).contains(&now));
                let end = now + holds.hold(Hold::Exponential(HOLD));
                agenda.push(end, Turn::Completion, Event::End(lease));
            }
            Said::No(retry_after) => {
                away += 1;
                let delay = match policy {
                    Policy::Hint { .. } => retry_after.unwrap_or(Span::MAX),
                    _ => Span::from_secs_f64(delay(policy, request.refusals, away, &mut chance)),
                };
                let next = now + delay;
                if next > request.born + PATIENCE {
                    failed += 1;
                } else {
                    let request = Request {
                        refusals: request.refusals + 1,
                        ..request
                    };
                    agenda.push(next, Turn::Arrival, Event::Try(request));
                }
            }
            Said::Wait(_) => {}
        }
    }
    Figures {
        attempts: share(attempts, requests),
        failed,
        requests,
        p99_wait: percentile(&mut waits, 0.99).unwrap_or(0.0),
        drained,
        admitted_after_burst: real(after_burst) * HOLD / (5.0 * real(PERMITS)),
    }
}

/// Seconds that a caller stays away after so many refusals before this one.
fn delay(policy: Policy, refusals: i32, away: u64, chance: &mut Random) -> f64 {
    let most = (0.05 * 2.0_f64.powi(refusals)).min(2.0);
    let pace = HOLD / real(PERMITS);
    match policy {
        Policy::Fixed(seconds) => seconds,
        Policy::FullJitter => chance.uniform() * most,
        Policy::EqualJitter => most / 2.0 + chance.uniform() * most / 2.0,
        Policy::Count => real(away) * pace * (1.0 + 0.2 * chance.uniform()),
        Policy::Hint { .. } => 0.0,
    }
}
