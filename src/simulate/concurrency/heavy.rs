//! S11: requests of one permit, and some of ten.

use std::{collections::HashMap, sync::Arc};

use crate::{
    model::{
        lease::LeaseId,
        time::{Span, Timestamp},
    },
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
const LIGHT_RATE: f64 = 100.0;
const HEAVY_RATE: f64 = 2.0;
const HEAVY_PERMITS: u64 = 10;
const HEAVY_WAIT: Span = Span::from_millis(500);

/// What a heavy request does that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is refused.
    Refuse,
    /// It waits half a second while light ones go on.
    Wait,
    /// It waits half a second and light ones are held back meanwhile.
    Reserve,
}

/// What each kind got.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Share of served light requests.
    pub light_ok: f64,
    /// Share of served heavy requests.
    pub heavy_ok: f64,
    /// 99th percentile of the wait of heavy requests that waited and were served, in seconds.
    pub heavy_p99_wait: Option<f64>,
}

enum Event {
    Arrive(bool),
    End(LeaseId),
    /// Somebody's wait is over.
    Look,
}

/// One run of so many seconds.
pub fn run(policy: Policy, seconds: f64, seed: u64) -> Figures {
    let mut rule = plain(PERMITS, HOLD);
    if policy == Policy::Reserve {
        rule.waiting.heavy_patience = Some(Span::ZERO);
    }
    let rule = Arc::new(rule);
    let mut desk = Desk::new(seed);
    let mut agenda = Agenda::new();
    let mut holds = Random::new(seed, 1);
    for (heavy, rate) in [(false, LIGHT_RATE), (true, HEAVY_RATE)] {
        for at in Random::new(seed, 2 + u64::from(heavy)).arrivals(rate, 0.0, seconds) {
            agenda.push(at, Turn::Arrival, Event::Arrive(heavy));
        }
    }
    let mut waiting: HashMap<Ticket, Timestamp> = HashMap::new();
    let (mut offered, mut served) = ([0_u64; 2], [0_u64; 2]);
    let mut waits = Vec::new();
    let mut started: Vec<(bool, LeaseId)> = Vec::new();
    while let Some((now, event)) = agenda.pop() {
        if now >= time(seconds) {
            break;
        }
        match event {
            Event::Arrive(heavy) => {
                let [light_count, heavy_count] = &mut offered;
                *(if heavy { heavy_count } else { light_count }) += 1;
                let permits = if heavy { HEAVY_PERMITS } else { 1 };
                let items = [Item::many(KEY, &rule, permits)];
                let waits = heavy && policy != Policy::Refuse;
                let max_wait = waits.then_some(HEAVY_WAIT);
                match desk.ask(
                    &Ask {
                        max_wait,
                        ..Ask::new(&items)
                    },
                    now,
                ) {
                    Said::Yes(lease) => started.push((heavy, lease)),
                    Said::Wait(ticket) => {
                        waiting.insert(ticket, now);
                        agenda.push(now + HEAVY_WAIT, Turn::Completion, Event::Look);
                    }
                    Said::No(_) => {}
                }
            }
            Event::End(lease) => desk.release(lease, now),
            Event::Look => {}
        }
        for (ticket, said) in desk.settled(now) {
            if let (Some(since), Said::Yes(lease)) = (waiting.remove(&ticket), said) {
                waits.push(now.since(since).as_secs_f64());
                started.push((true, lease));
            }
        }
        for (heavy, lease) in started.drain(..) {
            let [light_count, heavy_count] = &mut served;
            *(if heavy { heavy_count } else { light_count }) += 1;
            let end = now + holds.hold(Hold::Exponential(HOLD));
            agenda.push(end, Turn::Completion, Event::End(lease));
        }
    }
    let [light_ok, heavy_ok] = [0, 1].map(|kind| {
        let of = |counts: &[u64; 2]| counts.get(kind).copied().unwrap_or(0);
        share(of(&served), of(&offered))
    });
    Figures {
        light_ok,
        heavy_ok,
        heavy_p99_wait: percentile(&mut waits, 0.99),
    }
}
