//! S5: some holders never give their lease back.

use std::sync::Arc;

use crate::{
    algorithm::concurrency::{erlang::blocking, real::real, sizing::effective_hold},
    model::{
        lease::{LeaseId, Outcome},
        time::{Span, Timestamp},
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, plain},
        random::{Hold, Random, time},
        statistics::PerSecond,
    },
    store::lease::{Ask, Item, LimitView, Stream},
};

const PERMITS: u64 = 30;
const OFFERED: f64 = 200.0;
const HOLD: f64 = 0.25;
const SECONDS: f64 = 600.0;

/// How a leak is mended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leak {
    /// Share of the leases that nobody gives back.
    pub share: f64,
    /// Life of a lease in seconds; none is for ever.
    pub ttl: Option<f64>,
    /// Leases belong to sessions, and a dead one is noticed after this many seconds.
    pub detection: Option<f64>,
    /// Ends are noticed only at multiples of this many seconds, as by a sweeper. Ours has none;
    /// this is to compare.
    pub tick: Option<f64>,
}

/// What is left of the throughput.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Admitted per second from second 60 on.
    pub admitted: f64,
    /// What Erlang B says with the effective hold.
    pub erlang: f64,
    /// C over the effective hold.
    pub ceiling: f64,
    /// The last second in which anything was admitted.
    pub last_second: usize,
    /// How the book sees the leak at the end.
    pub view: LimitView,
}

enum Event {
    Arrive,
    End(LeaseId, Outcome),
    Lose(Stream),
}

/// One run.
pub fn run(leak: Leak, seed: u64) -> Figures {
    let mut rule = plain(PERMITS, HOLD);
    if let (Some(ttl), None) = (leak.ttl, leak.tick) {
        rule.lease_ttl = Span::from_secs_f64(ttl);
    }
    let rule = Arc::new(rule);
    let mut desk = Desk::new(seed);
    let mut agenda = Agenda::new();
    let (mut holds, mut chance) = (Random::new(seed, 2), Random::new(seed, 3));
    for at in Random::new(seed, 1).arrivals(OFFERED, 0.0, SECONDS) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    let mut admitted = PerSecond::default();
    while let Some((now, event)) = agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        match event {
            Event::Arrive => {
                let leaks = chance.chance(leak.share);
                let stream = match leak.detection {
                    Some(_) if leaks => Some(desk.book.open_session(Span::ZERO, now).stream),
                    _ => None,
                };
                let items = [Item::one(KEY, &rule)];
                let session = stream.map(|stream| stream.session);
                let Said::Yes(lease) = desk.ask(
                    &Ask {
                        session,
                        ..Ask::new(&items)
                    },
                    now,
                ) else {
                    continue;
                };
                admitted.add(now);
                let hold = holds.hold(Hold::Exponential(HOLD));
                if !leaks {
                    let end = Event::End(lease, Outcome::Success);
                    agenda.push(now + hold, Turn::Completion, end);
                } else if let (Some(stream), Some(after)) = (stream, leak.detection) {
                    let lost = now + Span::from_secs_f64(after);
                    agenda.push(lost, Turn::Completion, Event::Lose(stream));
                } else if let (Some(ttl), Some(tick)) = (leak.ttl, leak.tick) {
                    let end = swept(now + Span::from_secs_f64(ttl), tick);
                    agenda.push(end, Turn::Completion, Event::End(lease, Outcome::Ignored));
                }
            }
            Event::End(lease, outcome) => desk.release_as(lease, outcome, now),
            Event::Lose(stream) => desk.book.lose_session(stream, now),
        }
    }
    let view = desk.book.limits(time(SECONDS)).pop().unwrap_or_default();
    let mean = admitted.mean(60, 600);
    let per_second = admitted.into_counts();
    let leaked_for = leak.detection.or(leak.ttl).unwrap_or(f64::INFINITY);
    let hold = effective_hold(HOLD, leak.share, leaked_for);
    Figures {
        admitted: mean,
        erlang: OFFERED * (1.0 - blocking(OFFERED * hold.min(1e12), PERMITS)),
        ceiling: real(PERMITS) / hold,
        last_second: per_second.iter().rposition(|count| *count > 0).unwrap_or(0),
        view,
    }
}

/// The next multiple of `tick`.
fn swept(at: Timestamp, tick: f64) -> Timestamp {
    let ticks = at.since(Timestamp::ZERO).as_secs_f64() / tick;
    time(ticks.ceil() * tick)
}
