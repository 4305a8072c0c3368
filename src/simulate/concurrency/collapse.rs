//! S3: overload in front of 25 workers, with queues, gates and retries.

use std::{collections::HashMap, sync::Arc};

use crate::{
    model::{
        lease::LeaseId,
        time::{Span, Timestamp},
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, plain},
        random::Random,
        statistics::{PerSecond, percentile, share},
        workers::Workers,
    },
    store::lease::{Ask, Item, Ticket},
};

const WORKERS: u64 = 25;
const SERVICE: f64 = 0.25;
/// A client no longer wants an answer after this long.
const TIMEOUT: Span = Span::from_secs(2);
/// Overload, then a load that the service can carry.
const PHASES: [(f64, f64, f64); 2] = [(150.0, 0.0, 60.0), (80.0, 60.0, 300.0)];
const LAST_SECOND: usize = 302;

/// What stands in front of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The book's queue, as long as it likes.
    Queue {
        /// Newest first.
        newest_first: bool,
        /// Whoever cannot be served in time is dropped.
        drop_expired: bool,
    },
    /// A limit on everything behind it, the service's own queue included; nobody waits for it.
    Gate(u64),
    /// A limit of one permit per worker, and this many may wait for it.
    BoundedQueue(u64),
}

/// What a client does that got no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retries {
    /// It gives up.
    #[default]
    None,
    /// After a refusal it comes back twice, after 50 ms and up to 100 ms more.
    OnRefusal,
    /// After its timeout it asks again, twice, while the first attempt goes on.
    OnTimeout,
}

const MOST_RETRIES: u32 = 2;

/// What became of the requests.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Good answers per second in the first ten seconds.
    pub good_early: f64,
    /// Good answers per second from second 20 to 60.
    pub good_late: f64,
    /// Seconds after the end of the overload until goodput is back; none if never.
    pub recovery: Option<f64>,
    /// 99th percentile of the latency of good answers, in seconds.
    pub p99: f64,
    /// Share of the work that was for nothing.
    pub wasted: f64,
    /// Attempts per request.
    pub attempts: f64,
    /// Good answers in each second.
    pub per_second: Vec<u64>,
}

/// An attempt of a request.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    request: usize,
    arrived: Timestamp,
    number: u32,
}

enum Event {
    Arrive(Attempt),
    Done(Attempt, LeaseId),
    TimedOut(Attempt),
}

struct Run {
    policy: Policy,
    retries: Retries,
    desk: Desk,
    rule: Arc<crate::rules::concurrency::ConcurrencyRule>,
    workers: Workers<(Attempt, LeaseId)>,
    agenda: Agenda<Event>,
    waiting: HashMap<Ticket, Attempt>,
    chance: Random,
    answered: Vec<bool>,
    good: PerSecond,
    latencies: Vec<f64>,
    completions: u64,
    wasted: u64,
    attempts: u64,
}

/// One run.
pub fn run(policy: Policy, retries: Retries, seed: u64) -> Figures {
    let permits = if let Policy::Gate(permits) = policy {
        permits
    } else {
        WORKERS
    };
    let mut rule = plain(permits, SERVICE);
    if let Policy::BoundedQueue(most) = policy {
        rule.waiting.max_waiters = most;
    }
    rule.waiting.newest_first = matches!(
        policy,
        Policy::Queue {
            newest_first: true,
            ..
        }
    );
    let mut arrivals = Vec::new();
    let mut chance = Random::new(seed, 1);
    for (rate, from, to) in PHASES {
        arrivals.extend(chance.arrivals(rate, from, to));
    }
    let mut agenda = Agenda::new();
    for (request, arrived) in arrivals.iter().enumerate() {
        let attempt = Attempt {
            request,
            arrived: *arrived,
            number: 0,
        };
        agenda.push(*arrived, Turn::Arrival, Event::Arrive(attempt));
    }
    let run = Run {
        policy,
        retries,
        desk: Desk::new(seed),
        rule: Arc::new(rule),
        workers: Workers::new(WORKERS),
        agenda,
        waiting: HashMap::new(),
        chance: Random::new(seed, 2),
        answered: vec![false; arrivals.len()],
        good: PerSecond::default(),
        latencies: Vec::new(),
        completions: 0,
        wasted: 0,
        attempts: 0,
    };
    run.finish()
}

impl Run {
    fn finish(mut self) -> Figures {
        let end = Timestamp::from_secs(LAST_SECOND as u64);
        while let Some((now, event)) = self.agenda.pop() {
            if now >= end {
                break;
            }
            match event {
                Event::Arrive(attempt) => self.arrive(attempt, now),
                Event::Done(attempt, lease) => self.done(attempt, lease, now),
                Event::TimedOut(attempt) => {
                    if !self
                        .answered
                        .get(attempt.request)
                        .is_some_and(|answered| *answered)
                    {
                        self.again(attempt, now);
                    }
                }
            }
        }
        self.figures()
    }

    fn arrive(&mut self, attempt: Attempt, now: Timestamp) {
        self.attempts += 1;
        let items = [Item::one(KEY, &self.rule)];
        let waits = !matches!(self.policy, Policy::Gate(_));
        let in_time = matches!(
            self.policy,
            Policy::Queue {
                drop_expired: true,
                ..
            }
        );
        let ask = Ask {
            max_wait: Some(if waits {
                Span::from_secs(100_000)
            } else {
                Span::ZERO
            }),
            deadline: in_time.then(|| now + TIMEOUT),
            ..Ask::new(&items)
        };
        let said = self.desk.ask(&ask, now);
        if self.retries == Retries::OnTimeout
            && attempt.number < MOST_RETRIES
            && !matches!(said, Said::No(_))
        {
            self.agenda
                .push(now + TIMEOUT, Turn::Arrival, Event::TimedOut(attempt));
        }
        match said {
            Said::Yes(lease) => self.work(attempt, lease, now),
            Said::Wait(ticket) => {
                self.waiting.insert(ticket, attempt);
            }
            Said::No(_) => {
                if self.retries == Retries::OnRefusal && attempt.number < MOST_RETRIES {
                    let pause = 0.05 + 0.1 * self.chance.uniform();
                    self.again(attempt, now + Span::from_secs_f64(pause));
                }
            }
        }
    }

    fn again(&mut self, attempt: Attempt, at: Timestamp) {
        let next = Attempt {
            arrived: at,
            number: attempt.number + 1,
            ..attempt
        };
        self.agenda.push(at, Turn::Arrival, Event::Arrive(next));
    }

    fn work(&mut self, attempt: Attempt, lease: LeaseId, now: Timestamp) {
        let started = self.workers.arrive((attempt, lease));
        self.start(started, now);
    }

    fn start(&mut self, job: Option<(Attempt, LeaseId)>, now: Timestamp) {
        if let Some((attempt, lease)) = job {
            let end = now + Span::from_secs_f64(SERVICE);
            self.agenda
                .push(end, Turn::Completion, Event::Done(attempt, lease));
        }
    }

    fn done(&mut self, attempt: Attempt, lease: LeaseId, now: Timestamp) {
        self.completions += 1;
        let latency = now.since(attempt.arrived);
        match self.answered.get_mut(attempt.request) {
            Some(answered) if !*answered && latency <= TIMEOUT => {
                *answered = true;
                self.good.add(now);
                self.latencies.push(latency.as_secs_f64());
            }
            _ => self.wasted += 1,
        }
        let next = self.workers.done();
        self.start(next, now);
        self.desk.release(lease, now);
        for (ticket, said) in self.desk.settled(now) {
            if let (Some(attempt), Said::Yes(lease)) = (self.waiting.remove(&ticket), said) {
                self.work(attempt, lease, now);
            }
        }
    }

    fn figures(mut self) -> Figures {
        let back = |second: &usize| self.good.mean(*second, *second + 5) >= 72.0;
        let recovery = (60..LAST_SECOND - 5).find(back);
        Figures {
            good_early: self.good.mean(0, 10),
            good_late: self.good.mean(20, 60),
            recovery: recovery
                .and_then(|s| u32::try_from(s - 60).ok())
                .map(f64::from),
            p99: percentile(&mut self.latencies, 0.99).unwrap_or(0.0),
            wasted: share(self.wasted, self.completions),
            attempts: share(self.attempts, self.answered.len() as u64),
            per_second: self.good.into_counts(),
        }
    }
}
