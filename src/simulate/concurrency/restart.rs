//! S10: the limiter restarts while its holders go on.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    model::{
        lease::{Holder, LeaseId},
        time::{Span, Timestamp},
    },
    rules::concurrency::OnRestart,
    simulate::concurrency::{
        agenda::{Agenda, Turn},
        desk::{Desk, KEY, Said, plain},
        random::{Hold, Random, time},
    },
    store::lease::{Ask, Bounds, Identity, Item, LeaseBook, Saved},
};

const PERMITS: u64 = 30;
const HOLD: f64 = 5.0;
const OFFERED: f64 = 20.0;
const SECONDS: f64 = 60.0;
const RESTART: f64 = 30.0;
const TTL: Span = Span::from_secs(10);

/// What happened after the restart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Most work in flight, whatever the limiter knew.
    pub peak: u64,
    /// Refused requests.
    pub refused: u64,
    /// Admitted requests.
    pub admitted: u64,
}

enum Event {
    Restart,
    Arrive,
    /// The holder of this work presents its lease.
    Return(u64),
    End(u64),
}

/// One run. Holders of the reattach mode come back within 500 ms, those of a quarantine when it
/// ends.
pub fn run(mode: OnRestart, seed: u64) -> Figures {
    let mut rule = plain(PERMITS, HOLD);
    rule.on_restart = mode;
    rule.lease_ttl = TTL;
    let rule = Arc::new(rule);
    let mut desk = Desk::new(seed);
    let mut agenda = Agenda::new();
    let (mut holds, mut chance) = (Random::new(seed, 2), Random::new(seed, 3));
    for at in Random::new(seed, 1).arrivals(OFFERED, 0.0, SECONDS) {
        agenda.push(at, Turn::Arrival, Event::Arrive);
    }
    agenda.push(time(RESTART), Turn::Completion, Event::Restart);
    // True holders: what is really being worked on, with the lease each believes to hold.
    let mut working: BTreeMap<u64, LeaseId> = BTreeMap::new();
    let mut works = 0;
    let mut figures = Figures::default();
    let holder = Holder {
        id: "worker".into(),
        instance: "".into(),
    };
    let items = [Item::one(KEY, &rule)];
    // Holders renew in time; here their leases simply last.
    let ask = Ask {
        holder,
        ttl: Some(Span::from_secs(1_000)),
        ..Ask::new(&items)
    };
    while let Some((now, event)) = agenda.pop() {
        if now >= time(SECONDS) {
            break;
        }
        let after = now > time(RESTART);
        match event {
            Event::Restart => {
                desk.book = reopened(&mut desk.book, mode, &rule, now);
                for work in working.keys() {
                    if let Some(at) = return_time(mode, &mut chance) {
                        agenda.push(at, Turn::Arrival, Event::Return(*work));
                    }
                }
            }
            Event::Arrive => match desk.ask(&ask, now) {
                Said::Yes(lease) => {
                    works += 1;
                    working.insert(works, lease);
                    figures.admitted += u64::from(after);
                    let end = now + holds.hold(Hold::Exponential(HOLD));
                    agenda.push(end, Turn::Completion, Event::End(works));
                }
                _ => figures.refused += u64::from(after),
            },
            Event::Return(work) => {
                if let Some(old) = working.get_mut(&work) {
                    let adopt = [*old];
                    if let Said::Yes(lease) = desk.ask(
                        &Ask {
                            adopt: &adopt,
                            ..ask.clone()
                        },
                        now,
                    ) {
                        *old = lease;
                    }
                }
            }
            Event::End(work) => {
                if let Some(lease) = working.remove(&work) {
                    desk.release(lease, now);
                }
            }
        }
        if after {
            figures.peak = figures.peak.max(working.len() as u64);
        }
    }
    figures
}

fn reopened(
    book: &mut LeaseBook,
    mode: OnRestart,
    rule: &Arc<crate::rules::concurrency::ConcurrencyRule>,
    now: Timestamp,
) -> LeaseBook {
    let mut saved = book.save(now);
    if mode != OnRestart::Snapshot {
        saved = Saved {
            leases: Vec::new(),
            ..saved
        };
    }
    let identity = Identity { boot: 2, book: 0 };
    let rule_of = |_: &str| Some(Arc::clone(rule));
    LeaseBook::reopen(
        identity,
        Bounds::default(),
        [2; 32],
        now,
        &saved,
        Span::ZERO,
        rule_of,
    )
}

/// When a holder presents its lease; none when nobody asks for it.
fn return_time(mode: OnRestart, chance: &mut Random) -> Option<Timestamp> {
    let closed = mode.closed_for(TTL).as_secs_f64();
    match mode {
        OnRestart::Forget | OnRestart::Snapshot => None,
        OnRestart::Quarantine => Some(time(RESTART + closed)),
        OnRestart::Reattach => Some(time(RESTART + closed * chance.uniform())),
    }
}
