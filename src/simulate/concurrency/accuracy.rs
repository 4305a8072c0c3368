//! S9b: what a waiting request would be told, against how long it really waits.

use std::{collections::HashMap, sync::Arc};

use crate::{
    algorithm::concurrency::real::real,
    model::{
        lease::LeaseId,
        time::{Span, Timestamp},
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, knowing, plain},
        random::{Hold, Random, time},
    },
    store::lease::{Ask, Item},
};

/// A limit that everybody waits for.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Arrivals per second.
    pub offered: f64,
    /// Permits.
    pub permits: u64,
    /// Mean hold in seconds, exponential.
    pub hold: f64,
    /// Length of the run in seconds.
    pub seconds: f64,
}

/// Told and real waits, over those who waited.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Requests that waited.
    pub waited: u64,
    /// Mean of what was told, in seconds.
    pub told: f64,
    /// Mean of the real waits, in seconds.
    pub real: f64,
    /// Mean absolute error, in seconds.
    pub error: f64,
    /// Correlation of told and real.
    pub correlation: f64,
}

enum Event {
    Arrive,
    End(LeaseId),
}

/// One run. The book knows the mean hold: this is about the formula, not about the estimate.
pub fn run(load: Load, seed: u64) -> Figures {
    let mut rule = knowing(plain(load.permits, load.hold));
    rule.hints.jitter = 0.0;
    let rule = Arc::new(rule);
    let mut desk = Desk::new(seed);
    let mut agenda = Agenda::new();
    let mut holds = Random::new(seed, 2);
    for at in Random::new(seed, 1).arrivals(load.offered, 0.0, load.seconds) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    let mut waiting: HashMap<_, (Timestamp, f64)> = HashMap::new();
    let mut sums = Sums::default();
    let mut started: Vec<LeaseId> = Vec::new();
    while let Some((now, event)) = agenda.pop() {
        match event {
            Event::Arrive => {
                let items = [Item::one(KEY, &rule)];
                let max_wait = Some(Span::from_secs(1_000_000));
                // What a refusal would say: nothing is changed by asking.
                let would = desk.ask(
                    &Ask {
                        dry_run: true,
                        ..Ask::new(&items)
                    },
                    now,
                );
                match desk.ask(
                    &Ask {
                        max_wait,
                        ..Ask::new(&items)
                    },
                    now,
                ) {
                    Said::Yes(lease) => started.push(lease),
                    Said::Wait(ticket) => {
                        if let Said::No(retry_after) = would {
                            let told = retry_after.map_or(0.0, Span::as_secs_f64);
                            waiting.insert(ticket, (now, told));
                        }
                    }
                    Said::No(_) => {}
                }
            }
            Event::End(lease) => {
                desk.release(lease, now);
                for (ticket, said) in desk.settled(now) {
                    if let (Some((since, told)), Said::Yes(lease)) = (waiting.remove(&ticket), said)
                    {
                        sums.add(told, now.since(since).as_secs_f64());
                        started.push(lease);
                    }
                }
            }
        }
        for lease in started.drain(..) {
            let end = now + holds.hold(Hold::Exponential(load.hold));
            agenda.push(end, Turn::Completion, Event::End(lease));
        }
    }
    debug_assert!(desk.in_flight(time(load.seconds * 2.0)) == 0 || load.seconds < 1.0);
    sums.figures()
}

#[derive(Default)]
struct Sums {
    count: u64,
    told: f64,
    real: f64,
    error: f64,
    told_squared: f64,
    real_squared: f64,
    product: f64,
}

impl Sums {
    fn add(&mut self, told: f64, real: f64) {
        self.count += 1;
        self.told += told;
        self.real += real;
        self.error += (told - real).abs();
        self.told_squared += told * told;
        self.real_squared += real * real;
        self.product += told * real;
    }

    fn figures(&self) -> Figures {
        let count = real(self.count.max(1));
        let (told, waited) = (self.told / count, self.real / count);
        let covariance = self.product / count - told * waited;
        let told_variance = self.told_squared / count - told * told;
        let real_variance = self.real_squared / count - waited * waited;
        Figures {
            waited: self.count,
            told,
            real: waited,
            error: self.error / count,
            correlation: covariance / (told_variance * real_variance).sqrt(),
        }
    }
}
