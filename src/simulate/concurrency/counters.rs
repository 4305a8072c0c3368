//! S12: what becomes of a limit on work in flight when it is a counter that is raised and lowered
//! by one, as by a rate limit whose hits are given back, and not a set of leases.

use std::sync::Arc;

use crate::{
    algorithm::{self, concurrency::real::real},
    model::{
        lease::LeaseId,
        limit::{Algorithm, Anchor, Quota, State},
        time::{Span, Timestamp},
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, Said, plain},
        random::{Hold, Random, time},
        statistics::{AtSecond, TimeMean},
    },
};

/// Permits, or where the counter says no.
pub const LIMIT: u64 = 30;
const HOLD: f64 = 0.25;
const SECONDS: f64 = 300.0;
/// When a refused request is taken back, for who does that.
const TAKEN_BACK: Span = Span::from_millis(1);

/// How work in flight is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    /// As leases.
    Leases,
    /// By a counter.
    Counter(Counter),
}

/// A counter that is raised by an admission and lowered by a completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    /// It starts again from 0 at multiples of this time.
    pub window: Span,
    /// Share of the completions that are not told.
    pub lost: f64,
    /// Refused requests lower it, too: their end is told like that of others.
    pub refused_too: bool,
    /// Refused requests raise it.
    pub count_refused: bool,
}

/// What was really in flight.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Mean.
    pub mean: f64,
    /// Most.
    pub peak: u64,
    /// Share of the time with more than the limit.
    pub above: f64,
    /// Admitted per second.
    pub admitted: f64,
    /// In flight after each second.
    pub in_flight: Vec<u64>,
}

enum Event {
    Arrive,
    End(Option<LeaseId>),
    TakeBack,
}

/// One run.
pub fn run(count: Count, offered: f64, seed: u64) -> Figures {
    let rule = Arc::new(plain(LIMIT, HOLD));
    let mut desk = Desk::new(seed);
    let mut register = match count {
        Count::Leases => None,
        Count::Counter(counter) => Some(Register::new(counter, seed)),
    };
    let mut agenda = Agenda::new();
    let mut holds = Random::new(seed, 2);
    for at in Random::new(seed, 1).arrivals(offered, 0.0, SECONDS) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    let (mut now_in_flight, mut admitted, mut peak) = (0_u64, 0, 0);
    let (mut mean, mut above) = (TimeMean::default(), TimeMean::default());
    let mut in_flight = AtSecond::default();
    while let Some((now, event)) = agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        mean.advance(now_in_flight, now);
        above.advance(u64::from(now_in_flight > LIMIT), now);
        match event {
            Event::Arrive => {
                let lease = match &mut register {
                    None => match desk.ask_one(&rule, now) {
                        Said::Yes(lease) => Some(Some(lease)),
                        _ => None,
                    },
                    Some(register) => register.raise(now).then_some(None),
                };
                if let Some(lease) = lease {
                    now_in_flight += 1;
                    admitted += 1;
                    let end = now + holds.hold(Hold::Exponential(HOLD));
                    agenda.push(end, Turn::Completion, Event::End(lease));
                } else if register.as_ref().is_some_and(|it| it.counter.refused_too) {
                    agenda.push(now + TAKEN_BACK, Turn::Completion, Event::TakeBack);
                }
            }
            Event::End(lease) => {
                now_in_flight -= 1;
                if let Some(lease) = lease {
                    desk.release(lease, now);
                } else if let Some(register) = &mut register {
                    register.completion(now);
                }
            }
            Event::TakeBack => {
                if let Some(register) = &mut register {
                    register.lower(now);
                }
            }
        }
        peak = peak.max(now_in_flight);
        in_flight.note(now, now_in_flight);
    }
    Figures {
        mean: mean.mean(),
        peak,
        above: above.mean(),
        admitted: real(admitted) / SECONDS,
        in_flight: in_flight.into_counts(),
    }
}

/// The counter: a fixed window that is refunded.
struct Register {
    counter: Counter,
    quota: Quota,
    state: State,
    chance: Random,
}

const KIND: Algorithm = Algorithm::FixedWindow(Anchor::Clock);

impl Register {
    fn new(counter: Counter, seed: u64) -> Self {
        Self {
            counter,
            quota: Quota::window(LIMIT, counter.window),
            state: State::default(),
            chance: Random::new(seed, 3),
        }
    }

    fn raise(&mut self, now: Timestamp) -> bool {
        let counted = self.counter.count_refused;
        algorithm::take(&KIND, self.quota, &mut self.state, now, 1, counted).allowed
    }

    /// A completion that may get lost.
    fn completion(&mut self, now: Timestamp) {
        if !self.chance.chance(self.counter.lost) {
            self.lower(now);
        }
    }

    fn lower(&mut self, now: Timestamp) {
        algorithm::give_back(&KIND, self.quota, &mut self.state, now, 1);
    }
}
