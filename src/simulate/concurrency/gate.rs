//! S1 and S2: a limit alone. An arrival that finds all permits out is lost.

use std::sync::Arc;

use crate::{
    algorithm::concurrency::real::whole,
    model::lease::LeaseId,
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, plain},
        random::{Hold, Random, time},
        statistics::{AtSecond, PerSecond},
    },
};

/// A limit and its load.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Permits.
    pub permits: u64,
    /// Arrivals per second.
    pub offered: f64,
    /// How long each holds.
    pub hold: Hold,
    /// Seconds from which holds that start have another mean, and that mean.
    pub step: Option<(f64, f64)>,
    /// Length of the run in seconds.
    pub seconds: u32,
    /// Seconds at the start that do not count.
    pub warm_up: u32,
}

impl Gate {
    /// 30 permits for 400 s, 20 of them to warm up.
    pub const fn new(offered: f64, hold: Hold) -> Self {
        Self {
            permits: 30,
            offered,
            hold,
            step: None,
            seconds: 400,
            warm_up: 20,
        }
    }
}

/// What came through.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Admitted per second after the warm-up.
    pub admitted: f64,
    /// Most permits in flight.
    pub peak: u64,
    /// Admitted per second before and after the step, without the second of the step.
    pub around_step: Option<[f64; 2]>,
    /// Admitted in each second.
    pub per_second: Vec<u64>,
    /// In flight at the end of each second.
    pub in_flight: Vec<u64>,
    /// L, W, λ and the audit, as the book tells them at the end.
    pub view: crate::store::lease::LimitView,
}

enum Event {
    Arrive,
    End(LeaseId),
}

/// One run.
pub fn run(gate: Gate, seed: u64) -> Figures {
    let rule = Arc::new(plain(gate.permits, gate.hold.mean()));
    let mut desk = Desk::new(seed);
    let mut agenda = Agenda::new();
    let mut holds = Random::new(seed, 2);
    let end = f64::from(gate.seconds);
    for at in Random::new(seed, 1).arrivals(gate.offered, 0.0, end) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    let mut admitted = PerSecond::default();
    let mut in_flight = AtSecond::default();
    let mut peak = 0;
    while let Some((now, event)) = agenda.pop() {
        if now >= time(end) {
            break;
        }
        match event {
            Event::Arrive => {
                if let Said::Yes(id) = desk.ask_one(&rule, now) {
                    let hold = match gate.step {
                        Some((at, mean)) if now >= time(at) => gate.hold.with_mean(mean),
                        _ => gate.hold,
                    };
                    agenda.push(now + holds.hold(hold), Turn::Completion, Event::End(id));
                    admitted.add(now);
                    peak = peak.max(desk.in_flight(now));
                }
            }
            Event::End(id) => desk.release(id, now),
        }
        in_flight.note(now, desk.in_flight(now));
    }
    let view = desk.book.limits(time(end)).pop().unwrap_or_default();
    debug_assert!(
        desk.book
            .peek(KEY, time(end))
            .is_some_and(|key| key.limit == gate.permits)
    );
    let second = |second: u32| usize::try_from(second).unwrap_or(usize::MAX);
    let (warm_up, last) = (second(gate.warm_up), second(gate.seconds));
    let around_step = gate.step.map(|(at, _)| {
        let at = usize::try_from(whole(at)).unwrap_or(usize::MAX);
        let before = admitted.mean(warm_up, at);
        [before, admitted.mean(at.saturating_add(1), last)]
    });
    Figures {
        admitted: admitted.mean(warm_up, last),
        peak,
        around_step,
        per_second: admitted.into_counts(),
        in_flight: in_flight.into_counts(),
        view,
    }
}
