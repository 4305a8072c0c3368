//! S7: three classes of requests, twice as many as the limit lets through.

use std::{collections::HashMap, sync::Arc};

use crate::{
    algorithm::concurrency::real::real,
    model::{
        lease::{Criticality, LeaseId},
        time::Timestamp,
    },
    rules::concurrency::Shedding,
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, plain},
        random::{Hold, Random, time},
        statistics::{percentile, share},
    },
    store::lease::{Ask, Item, Ticket},
};

const PERMITS: u64 = 30;
const HOLD: f64 = 0.25;
const SECONDS: f64 = 400.0;
/// Arrivals per second of each class, the most critical first.
const RATES: [f64; 3] = [60.0, 60.0, 120.0];
const CLASSES: [Criticality; 3] = [
    Criticality::CriticalPlus,
    Criticality::Critical,
    Criticality::SheddablePlus,
];

/// What each class got.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Share of served requests per class.
    pub ok: [f64; 3],
    /// Served per second.
    pub total: f64,
    /// 99th percentile of the wait of those who waited and were served, in seconds.
    pub p99_wait: [Option<f64>; 3],
}

enum Event {
    Arrive(usize),
    End(LeaseId),
    /// Somebody's wait is over.
    Look,
}

struct Run {
    desk: Desk,
    agenda: Agenda<Event>,
    holds: Random,
    waiting: HashMap<Ticket, (usize, Timestamp)>,
    offered: [u64; 3],
    served: [u64; 3],
    waits: [Vec<f64>; 3],
}

/// One run.
pub fn run(shedding: Shedding, seed: u64) -> Figures {
    let mut rule = plain(PERMITS, HOLD);
    rule.shedding = shedding;
    let rule = Arc::new(rule);
    let mut run = Run {
        desk: Desk::new(seed),
        agenda: Agenda::new(),
        holds: Random::new(seed, 1),
        waiting: HashMap::new(),
        offered: [0; 3],
        served: [0; 3],
        waits: [const { Vec::new() }; 3],
    };
    for (class, rate) in RATES.iter().enumerate() {
        for at in Random::new(seed, 10 + class as u64).arrivals(*rate, 0.0, SECONDS) {
            run.agenda.push(at, Turn::Arrival, Event::Arrive(class));
        }
    }
    while let Some((now, event)) = run.agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        match event {
            Event::Arrive(class) => {
                let items = [Item::one(KEY, &rule)];
                let criticality = CLASSES.get(class).copied().unwrap_or_default();
                run.arrive(
                    class,
                    &Ask {
                        criticality,
                        ..Ask::new(&items)
                    },
                    now,
                );
            }
            Event::End(lease) => run.desk.release(lease, now),
            Event::Look => {}
        }
        run.serve(now);
    }
    run.figures()
}

impl Run {
    fn arrive(&mut self, class: usize, ask: &Ask<'_>, now: Timestamp) {
        if let Some(offered) = self.offered.get_mut(class) {
            *offered += 1;
        }
        match self.desk.ask(ask, now) {
            Said::Yes(lease) => self.start(class, lease, now),
            Said::Wait(ticket) => {
                self.waiting.insert(ticket, (class, now));
                if let Some(due) = self.desk.book.next_due() {
                    self.agenda.push(due, Turn::Completion, Event::Look);
                }
            }
            Said::No(_) => {}
        }
    }

    fn start(&mut self, class: usize, lease: LeaseId, now: Timestamp) {
        if let Some(served) = self.served.get_mut(class) {
            *served += 1;
        }
        let end = now + self.holds.hold(Hold::Exponential(HOLD));
        self.agenda.push(end, Turn::Completion, Event::End(lease));
    }

    fn serve(&mut self, now: Timestamp) {
        for (ticket, said) in self.desk.settled(now) {
            if let (Some((class, since)), Said::Yes(lease)) = (self.waiting.remove(&ticket), said) {
                if let Some(waits) = self.waits.get_mut(class) {
                    waits.push(now.since(since).as_secs_f64());
                }
                self.start(class, lease, now);
            }
        }
    }

    fn figures(mut self) -> Figures {
        let mut figures = Figures {
            ok: [0.0; 3],
            total: real(self.served.iter().sum()) / SECONDS,
            p99_wait: [None; 3],
        };
        let counts = self.served.iter().zip(self.offered);
        for (ok, (served, offered)) in figures.ok.iter_mut().zip(counts) {
            *ok = share(*served, offered);
        }
        for (p99, waits) in figures.p99_wait.iter_mut().zip(&mut self.waits) {
            *p99 = percentile(waits, 0.99);
        }
        figures
    }
}
