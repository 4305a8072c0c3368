//! S6: a quota and a concurrency limit on the same requests, decided one after the other or as
//! one.

use std::sync::Arc;

use crate::{
    algorithm,
    model::{
        lease::LeaseId,
        limit::{Algorithm, Anchor, Quota, State},
        time::Span,
    },
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, plain},
        random::{Random, time},
    },
    store::lease::{Ask, Checked, Item, RateShort},
};

const OFFERED: f64 = 10.0;
const SECONDS: f64 = 60.0;
const QUOTA: u64 = 60;
const PERMITS: u64 = 2;
const HOLD: Span = Span::from_secs(1);

/// How the two limits are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The quota is consumed, then concurrency is checked.
    RateFirst,
    /// Both are checked, then both are consumed.
    Atomic,
}

/// What the minute gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Requests that were served.
    pub ok: u64,
    /// Units of the quota that were consumed.
    pub quota_used: u64,
    /// Units that were consumed for nothing.
    pub burned: u64,
    /// Refused by the concurrency limit.
    pub refused_concurrency: u64,
    /// Refused by the quota.
    pub refused_rate: u64,
    /// When the last request was served, in seconds.
    pub last_ok: f64,
}

enum Event {
    Arrive,
    End(LeaseId),
}

/// One run.
pub fn run(order: Order, seed: u64) -> Figures {
    let rule = Arc::new(plain(PERMITS, 1.0));
    let quota = Quota::window(QUOTA, Span::from_secs(60));
    let kind = Algorithm::FixedWindow(Anchor::Clock);
    let mut window = State::default();
    let mut desk = Desk::new(seed);
    let mut agenda = Agenda::new();
    for at in Random::new(seed, 1).arrivals(OFFERED, 0.0, SECONDS) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    let mut figures = Figures::default();
    while let Some((now, event)) = agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        let lease = match event {
            Event::End(lease) => {
                desk.release(lease, now);
                continue;
            }
            Event::Arrive => {
                // The rate is looked at first: what it refuses is not counted for concurrency.
                let rate = match order {
                    Order::RateFirst => algorithm::take(&kind, quota, &mut window, now, 1, false),
                    Order::Atomic => algorithm::look(&kind, quota, &window, now, 1),
                };
                figures.refused_rate += u64::from(!rate.allowed);
                if order == Order::RateFirst {
                    if !rate.allowed {
                        continue;
                    }
                    figures.quota_used += 1;
                }
                let items = [Item::one(KEY, &rule)];
                desk.book.turn(now, &mut ());
                let Ok(Checked::Open(plan)) = desk.book.check(&Ask::new(&items), now) else {
                    continue;
                };
                if plan.fits() && rate.allowed {
                    if order == Order::Atomic {
                        let _ = algorithm::take(&kind, quota, &mut window, now, 1, false);
                        figures.quota_used += 1;
                    }
                    desk.book.commit(&plan).leases.first().copied()
                } else {
                    figures.refused_concurrency += u64::from(rate.allowed);
                    let short = RateShort {
                        retry_after: None,
                        shared: false,
                    };
                    let _ = desk.book.refuse(*plan, (!rate.allowed).then_some(short));
                    None
                }
            }
        };
        if let Some(lease) = lease {
            figures.ok += 1;
            figures.last_ok = now.since(time(0.0)).as_secs_f64();
            agenda.push(now + HOLD, Turn::Completion, Event::End(lease));
        }
    }
    figures.burned = figures.quota_used - figures.ok;
    figures
}
