//! S4: one loud tenant and thirty small ones on one limit.

use std::{collections::HashMap, sync::Arc};

use crate::{
    algorithm::concurrency::real::real,
    model::{
        key::CounterKey,
        lease::{Criticality, LeaseId},
        time::{Span, Timestamp},
    },
    rules::concurrency::Shedding,
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, plain},
        random::{Hold, Random, time},
        statistics::{TimeMean, percentile, share},
    },
    store::lease::{Ask, Item, Ticket},
};

const PERMITS: u64 = 30;
const SMALL: usize = 30;
const SMALL_RATE: f64 = 2.0;
const LOUD_RATE: f64 = 300.0;
const SECONDS: f64 = 300.0;
const HOLD: f64 = 0.25;

/// How the limit is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Whoever comes first.
    None,
    /// Nobody has more than this.
    HardCap(u64),
    /// The loud one leaves this many permits alone.
    Reserve(u64),
    /// The loud one has no more than this.
    LoudCap(u64),
    /// Tenants below their share wait this long; the book finds out who that is.
    UnderShareWait(Span),
    /// Everybody waits this long.
    EveryoneWaits(Span),
}

/// What each side got.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Share of the small tenants' requests that were served.
    pub small_ok: f64,
    /// The same for the small tenant that got least.
    pub worst_ok: f64,
    /// Served requests of the loud tenant, per second.
    pub loud: f64,
    /// Served requests of all, per second.
    pub total: f64,
    /// Mean part of the limit in use.
    pub utilisation: f64,
    /// Median and 99th percentile of the wait of small tenants that waited and were served, in
    /// seconds.
    pub wait: Option<(f64, f64)>,
}

enum Event {
    Arrive(usize),
    End(LeaseId),
    /// Somebody's wait is over.
    Look,
}

/// The loud tenant's number; the small ones follow.
const LOUD: usize = 0;

/// One run.
pub fn run(policy: Policy, seed: u64) -> Figures {
    let mut rule = plain(PERMITS, HOLD);
    match policy {
        Policy::Reserve(kept) => {
            let part = real(PERMITS - kept) / real(PERMITS);
            rule.shedding = Shedding::Thresholds([1.0, 1.0, 1.0, part]);
        }
        Policy::UnderShareWait(wait) => rule.waiting.under_share_wait = Some(wait),
        Policy::EveryoneWaits(wait) => rule.waiting.max_wait = wait,
        Policy::None | Policy::HardCap(_) | Policy::LoudCap(_) => {}
    }
    let cap = match policy {
        Policy::HardCap(cap) | Policy::LoudCap(cap) => Some(Arc::new(plain(cap, HOLD))),
        _ => None,
    };
    let rule = Arc::new(rule);
    let mut agenda = Agenda::new();
    for tenant in 0..=SMALL {
        let rate = if tenant == LOUD {
            LOUD_RATE
        } else {
            SMALL_RATE
        };
        let stream = 100 + tenant as u64;
        for at in Random::new(seed, stream).arrivals(rate, 0.0, SECONDS) {
            agenda.push(at, Turn::Arrival, Event::Arrive(tenant));
        }
    }
    let mut run = Run {
        desk: Desk::new(seed),
        agenda,
        holds: Random::new(seed, 1),
        offered: vec![0; SMALL + 1],
        served: vec![0; SMALL + 1],
        waits: Vec::new(),
        waiting: HashMap::new(),
        busy: TimeMean::default(),
    };
    while let Some((now, event)) = run.agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        run.busy.advance(run.desk.in_flight(now), now);
        match event {
            Event::Arrive(tenant) => {
                let mut items = vec![Item::one(KEY, &rule)];
                let capped = tenant == LOUD || matches!(policy, Policy::HardCap(_));
                if let (Some(cap), true) = (&cap, capped) {
                    let own = CounterKey::from_bits(1 + tenant as u128);
                    items.push(Item::one(own, cap));
                }
                let low = tenant == LOUD && matches!(policy, Policy::Reserve(_));
                let ask = Ask {
                    tenant: Some(CounterKey::from_bits(tenant as u128)),
                    criticality: if low {
                        Criticality::Sheddable
                    } else {
                        Criticality::Critical
                    },
                    ..Ask::new(&items)
                };
                run.arrive(tenant, &ask, now);
            }
            Event::End(lease) => run.desk.release(lease, now),
            Event::Look => {}
        }
        run.serve(now);
    }
    run.figures()
}

struct Run {
    desk: Desk,
    agenda: Agenda<Event>,
    holds: Random,
    offered: Vec<u64>,
    served: Vec<u64>,
    /// Waits of small tenants.
    waits: Vec<f64>,
    waiting: HashMap<Ticket, (usize, Timestamp)>,
    busy: TimeMean,
}

impl Run {
    fn arrive(&mut self, tenant: usize, ask: &Ask<'_>, now: Timestamp) {
        if let Some(offered) = self.offered.get_mut(tenant) {
            *offered += 1;
        }
        match self.desk.ask(ask, now) {
            Said::Yes(lease) => self.start(tenant, lease, now),
            Said::Wait(ticket) => {
                self.waiting.insert(ticket, (tenant, now));
                if let Some(due) = self.desk.book.next_due() {
                    self.agenda.push(due, Turn::Completion, Event::Look);
                }
            }
            Said::No(_) => {}
        }
    }

    fn start(&mut self, tenant: usize, lease: LeaseId, now: Timestamp) {
        if let Some(served) = self.served.get_mut(tenant) {
            *served += 1;
        }
        let end = now + self.holds.hold(Hold::Exponential(HOLD));
        self.agenda.push(end, Turn::Completion, Event::End(lease));
    }

    fn serve(&mut self, now: Timestamp) {
        for (ticket, said) in self.desk.settled(now) {
            if let (Some((tenant, since)), Said::Yes(lease)) = (self.waiting.remove(&ticket), said)
            {
                if tenant != LOUD {
                    self.waits.push(now.since(since).as_secs_f64());
                }
                self.start(tenant, lease, now);
            }
        }
    }

    fn figures(mut self) -> Figures {
        let of_small = |counts: &[u64]| counts.iter().skip(1).sum::<u64>();
        let ratios = self.served.iter().zip(&self.offered).skip(1);
        let median = percentile(&mut self.waits, 0.5);
        let high = percentile(&mut self.waits, 0.99);
        let loud = self.served.first().copied().unwrap_or(0);
        Figures {
            small_ok: share(of_small(&self.served), of_small(&self.offered)),
            worst_ok: ratios.map(|(ok, of)| share(*ok, *of)).fold(1.0, f64::min),
            loud: real(loud) / SECONDS,
            total: real(self.served.iter().sum()) / SECONDS,
            utilisation: self.busy.mean() / real(PERMITS),
            wait: median.zip(high),
        }
    }
}
