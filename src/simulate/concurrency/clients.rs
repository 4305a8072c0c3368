//! Clients of a rate limit that come back when they are refused: what their manners do to the load.

use crate::{
    algorithm::{Retry, concurrency::real::real},
    engine::standing::spread,
    model::time::{Span, Timestamp},
    rules::limit::Limit,
    simulate::{
        concurrency::{
            agenda::{Agenda, Turn},
            random::Random,
            statistics::share,
        },
        run::{Counter, Fate},
    },
};

/// When a refused client comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manners {
    /// Not at all.
    GivesUp,
    /// At once: after the time that an answer takes.
    AtOnce,
    /// After a time that doubles with each refusal.
    Doubling(Span),
    /// After any part of a time that doubles with each refusal, up to 30 s ("full jitter").
    FullJitter(Span),
    /// When it is told, and up to so much later; never when it is told never.
    AsTold(Span),
}

/// An answer takes this long to reach a client.
const ANSWER: Span = Span::from_millis(10);
/// Longest pause of a back-off.
const LONGEST: Span = Span::from_secs(30);
/// What is counted together.
const BIN: Span = Span::from_millis(100);
/// How many bins are counted as the first rush.
const RUSH: usize = 10;

/// Who comes, and to what.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The limit, one key for all.
    pub limit: Limit,
    /// First attempts of requests, from the start.
    pub arrivals: Vec<Span>,
    /// How clients behave.
    pub manners: Manners,
    /// Most attempts of a request.
    pub attempts: u32,
    /// Hints are longer by up to this share of themselves, in thousandths (`answer.spread`).
    pub spread_permille: u32,
    /// Clients are told whole seconds, rounded up and at least one, as by `Retry-After`.
    pub whole_seconds: bool,
}

/// What became of the requests, and what the server saw.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Attempts per second while new requests come, or in the first second.
    pub load: f64,
    /// Attempts per request.
    pub attempts: f64,
    /// Most attempts in 100 ms after the first second.
    pub later_peak: u64,
    /// Share of the requests that were served.
    pub served: f64,
    /// When the last one was served, in seconds.
    pub last: Option<f64>,
    /// Attempts in each 100 ms.
    pub per_bin: Vec<u64>,
    /// Served in each 100 ms.
    pub served_per_bin: Vec<u64>,
}

/// An attempt of somebody who was refused so often.
struct Attempt {
    refusals: u32,
}

/// One run.
pub fn run(scenario: &Scenario, seed: u64) -> Figures {
    let counter = Counter::new(&scenario.limit);
    let mut chance = Random::new(seed, 1);
    let mut agenda = Agenda::new();
    for at in &scenario.arrivals {
        agenda.push(
            Timestamp::ZERO + *at,
            Turn::Arrival,
            Attempt { refusals: 0 },
        );
    }
    let (mut attempts, mut served) = (Bins::default(), Bins::default());
    let mut last = None;
    while let Some((now, Attempt { refusals })) = agenda.pop() {
        attempts.add(now);
        match counter.ask(1, now) {
            Fate::Admitted(_) => {
                served.add(now);
                last = Some(now.since(Timestamp::ZERO).as_secs_f64());
            }
            Fate::Refused(retry) => {
                let told = match retry {
                    Retry::Never => None,
                    Retry::After(wait) => {
                        let permille = scenario.spread_permille;
                        let wait = spread(wait, permille, Counter::KEY, now);
                        Some(if scenario.whole_seconds {
                            Span::from_secs(wait.as_secs_up().max(1))
                        } else {
                            wait
                        })
                    }
                };
                let pause = pause(scenario.manners, refusals, told, &mut chance);
                if let Some(pause) = pause.filter(|_| refusals + 1 < scenario.attempts) {
                    let next = Attempt {
                        refusals: refusals + 1,
                    };
                    agenda.push(now + pause, Turn::Arrival, next);
                }
            }
        }
    }
    let requests = scenario.arrivals.len() as u64;
    let first = scenario.arrivals.iter().max().copied().unwrap_or_default();
    let coming = bin(Timestamp::ZERO + first).max(RUSH - 1) + 1;
    let early = attempts.0.iter().take(coming);
    Figures {
        load: real(early.sum()) * 10.0 / real(coming as u64),
        attempts: share(attempts.0.iter().sum(), requests),
        later_peak: attempts.0.iter().skip(RUSH).max().copied().unwrap_or(0),
        served: share(served.0.iter().sum(), requests),
        last,
        per_bin: attempts.0,
        served_per_bin: served.0,
    }
}

/// How long a client stays away that was refused so often before this refusal; none: it gives up.
fn pause(manners: Manners, refusals: u32, told: Option<Span>, chance: &mut Random) -> Option<Span> {
    let doubled = |base: Span| base.saturating_mul(1 << refusals.min(20));
    let part_of = |chance: &mut Random, most: Span| {
        Span::from_secs_f64(chance.uniform() * most.as_secs_f64())
    };
    Some(match manners {
        Manners::GivesUp => return None,
        Manners::AtOnce => ANSWER,
        Manners::Doubling(base) => doubled(base),
        Manners::FullJitter(base) => part_of(chance, doubled(base).min(LONGEST)),
        Manners::AsTold(jitter) => told?.saturating_add(part_of(chance, jitter)),
    })
}

fn bin(at: Timestamp) -> usize {
    let bin = at.as_nanos() / BIN.as_nanos();
    usize::try_from(bin).unwrap_or(usize::MAX)
}

/// Counts per 100 ms.
#[derive(Default)]
struct Bins(Vec<u64>);

/// A day: who comes later than that is counted as if he came then.
const MOST_BINS: usize = 864_000;

impl Bins {
    fn add(&mut self, at: Timestamp) {
        let bin = bin(at).min(MOST_BINS);
        if bin >= self.0.len() {
            self.0.resize(bin + 1, 0);
        }
        if let Some(count) = self.0.get_mut(bin) {
            *count += 1;
        }
    }
}
