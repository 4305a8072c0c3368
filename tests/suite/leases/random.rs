//! Thousands of random steps, against a bookkeeping of the test's own.
//!
//! After each step: permits in flight are the sum of the live leases, no grant went above its
//! limit, and the audit of Little's law balances to the nanosecond.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use porteiro::{
    model::{
        key::CounterKey,
        lease::{Criticality, Decision, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    rules::concurrency::{ConcurrencyRule, OnShrink, Shedding},
    store::lease::{
        Answer, Ask, Bounds, Event, Item, LeaseBook, Naming, Opened, Release, Reply, Ticket, Undo,
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::leases::{Bench, holder, millis, rule};

/// What the test knows of a lease.
#[derive(Clone, Debug)]
struct Mine {
    items: Vec<(CounterKey, u64)>,
    /// When it ends by itself.
    expires: Timestamp,
    latest: Timestamp,
    session: Option<u128>,
    naming: Naming,
    claims: u32,
}

struct Walk {
    bench: Bench,
    random: StdRng,
    rules: Vec<(CounterKey, Arc<ConcurrencyRule>)>,
    mine: BTreeMap<LeaseId, Mine>,
    gone: Vec<LeaseId>,
    waiting: Vec<(Ticket, Asked)>,
    sessions: Vec<Opened>,
    /// Sessions whose stream is lost, and when they end.
    ending: BTreeMap<u128, Timestamp>,
    /// How often each thing happened: a walk that only refuses proves nothing.
    seen: BTreeMap<String, u64>,
}

/// What is needed to understand the answer to a request.
#[derive(Clone, Debug)]
struct Asked {
    places: Vec<CounterKey>,
    ttl: Span,
    session: Option<u128>,
    naming: Naming,
    /// Holder and request id of a request that can be repeated.
    request: Option<(String, String)>,
}

const LIFETIME: Span = Span::from_secs(20);
const GRACE: Span = Span::from_millis(400);

impl Walk {
    fn new(seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let limits = [1, 3, 5, 12, 4];
        let rules = limits.iter().enumerate().map(|(place, permits)| {
            let key = CounterKey::from_bits(u128::try_from(place).unwrap());
            (key, variant(place, *permits))
        });
        Self {
            bench: Bench::with(Bounds {
                leases_per_session: 4,
                ..Bounds::default()
            }),
            random,
            rules: rules.collect(),
            mine: BTreeMap::new(),
            gone: Vec::new(),
            waiting: Vec::new(),
            sessions: Vec::new(),
            ending: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.random_range(0..bound)
    }

    fn chance(&mut self, part: f64) -> bool {
        self.random.random::<f64>() < part
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let place = self.below(from.len());
        Some(from[place].clone())
    }

    fn step(&mut self) {
        match self.below(100) {
            0..40 => self.acquire(),
            40..62 => self.release(),
            62..68 => self.renew(),
            68..70 => self.undo(),
            70..73 => self.leave(),
            73..78 => self.session(),
            78..81 => self.change_limit(),
            81..84 => self.release_by_name(),
            84..86 => self.bench.book.sweep(3, self.bench.now),
            _ => {
                let longest = if self.chance(0.1) { 3_000 } else { 60 };
                let passed = self.random.random_range(0..longest);
                self.bench.now = self.bench.now + millis(passed);
                self.expire();
            }
        }
        // Every other time nobody looks: expiry must be exact all the same.
        if self.chance(0.5) {
            self.turn();
        }
        self.check();
    }

    fn turn(&mut self) {
        self.bench.book.turn(self.bench.now, &mut ());
        self.events();
    }

    /// Ends what the test knows to be over.
    fn expire(&mut self) {
        let now = self.bench.now;
        let over: Vec<u128> = self
            .ending
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(token, _)| *token)
            .collect();
        for token in over {
            self.ending.remove(&token);
            self.sessions.retain(|opened| opened.token != token);
            self.forget_session(token);
        }
        let gone = &mut self.gone;
        self.mine.retain(|id, mine| {
            let live = mine.expires > now;
            if !live {
                gone.push(*id);
            }
            live
        });
    }

    fn forget_session(&mut self, token: u128) {
        let gone = &mut self.gone;
        self.mine.retain(|id, mine| {
            let live = mine.session != Some(token);
            if !live {
                gone.push(*id);
            }
            live
        });
    }

    fn acquire(&mut self) {
        let count = 1 + self.below(3);
        let mut items = Vec::new();
        for _ in 0..count {
            let (key, rule) = self.pick(&self.rules.clone()).unwrap();
            let permits = 1 + self.random.random_range(0..3) * u64::from(self.chance(0.4));
            items.push(Item {
                least: 1,
                ..Item::many(key, &rule, permits)
            });
        }
        let request = format!("r{}", self.below(60));
        let naming = match self.below(10) {
            0..2 => Naming::Named(CounterKey::from_bits(100 + self.random.random_range(0..12))),
            2 => Naming::Anonymous,
            _ => Naming::Issued,
        };
        let session = if naming == Naming::Issued && self.chance(0.25) {
            self.pick(&self.sessions.clone())
        } else {
            None
        };
        let ttl = millis(1_000 + self.random.random_range(0..3_000));
        let name = ["a", "b", ""][self.below(3)];
        let request_id = if self.chance(0.5) {
            request.as_str()
        } else {
            ""
        };
        let repeatable = naming == Naming::Issued && !request_id.is_empty();
        let asked = Asked {
            places: items.iter().map(|item| item.key).collect(),
            ttl,
            session: session.map(|opened| opened.token),
            naming,
            request: repeatable.then(|| (name.to_owned(), request_id.to_owned())),
        };
        let classes = Criticality::ALL;
        let ask = Ask {
            holder: holder(name),
            request_id: request_id.as_bytes(),
            naming,
            ttl: Some(ttl),
            max_wait: Some(millis([0, 0, 30, 300][self.below(4)])),
            criticality: classes[self.below(4)],
            tenant: Some(CounterKey::from_bits(self.random.random_range(0..4))),
            session: session.map(|opened| opened.stream.session),
            partial: self.chance(0.2),
            dry_run: self.chance(0.05),
            deadline: self.chance(0.1).then(|| self.bench.now + millis(200)),
            ..Ask::new(&items)
        };
        self.turn();
        let before = self.in_flight();
        match self.bench.book.acquire(&ask, self.bench.now) {
            Err(error) => self.saw(format!("{error:?}")),
            Ok(Reply::Waits(ticket)) => {
                self.saw("waits");
                // Whoever repeats a request that waits gets what that one asked for.
                let same = |(_, other): &&(Ticket, Asked)| {
                    asked.request.is_some() && other.request == asked.request
                };
                let first = self.waiting.iter().find(same);
                let asked = first.map_or(asked.clone(), |(_, first)| first.clone());
                self.waiting.push((ticket, asked));
            }
            Ok(Reply::Now(answer)) => {
                if ask.dry_run {
                    assert!(self.in_flight() <= before, "a dry run took something");
                }
                self.saw(answer.decision.label());
                self.answered(&answer, &asked);
            }
        }
        self.events();
    }

    fn in_flight(&self) -> u64 {
        self.rules
            .iter()
            .map(|(key, _)| self.bench.in_flight(*key))
            .sum()
    }

    /// Notes what an answer gave.
    fn answered(&mut self, answer: &Answer, asked: &Asked) {
        match answer.decision {
            Decision::Granted => {
                let latest = self.bench.now + LIFETIME;
                let mut items: BTreeMap<CounterKey, u64> = BTreeMap::new();
                for (key, state) in asked.places.iter().zip(&answer.items) {
                    items.insert(*key, state.granted);
                    let rule = &self.rules.iter().find(|(known, _)| known == key).unwrap().1;
                    assert!(
                        rule.shadow || state.in_flight <= state.limit || state.granted == 0,
                        "granted above the limit: {answer:?}"
                    );
                    assert!(answer.limiting.is_empty());
                }
                let expires = if asked.session.is_some() {
                    latest
                } else {
                    self.bench.now + asked.ttl
                };
                let mine = |items: Vec<(CounterKey, u64)>| Mine {
                    items,
                    expires,
                    latest,
                    session: asked.session,
                    naming: asked.naming,
                    claims: 1,
                };
                if asked.naming == Naming::Issued {
                    assert_eq!(answer.leases.len(), 1);
                    self.mine
                        .insert(answer.leases[0], mine(items.into_iter().collect()));
                } else {
                    // One lease per key; which key it is says the book.
                    for id in &answer.leases {
                        // It waited for a name that somebody else got meanwhile.
                        if let Some(mine) = self.mine.get_mut(id) {
                            mine.claims += 1;
                            continue;
                        }
                        let of_key = |key: &CounterKey| {
                            let leases = self.bench.book.leases(*key, 1_000, self.bench.now);
                            leases.iter().any(|lease| lease.id == *id)
                        };
                        let key = items.keys().copied().find(of_key).unwrap();
                        self.mine.insert(*id, mine(vec![(key, items[&key])]));
                    }
                }
            }
            Decision::Replayed => {
                for id in &answer.leases {
                    if let Some(mine) = self.mine.get_mut(id) {
                        mine.claims += 1;
                    } else {
                        panic!("replayed {id} is not live");
                    }
                }
            }
            Decision::Refused => {
                assert!(answer.cause.is_some(), "{answer:?}");
                assert!(
                    answer.retry_after.is_some_and(|wait| wait >= millis(1)),
                    "{answer:?}"
                );
            }
            _ => {}
        }
    }

    fn events(&mut self) {
        for event in self.bench.book.take_events() {
            match event {
                Event::Settled { ticket, answer } => {
                    let place = self.waiting.iter().position(|(known, _)| *known == ticket);
                    let (_, asked) = self.waiting.remove(place.expect("a ticket that waits"));
                    self.saw(format!("settled {}", answer.decision.label()));
                    self.answered(&answer, &asked);
                }
                Event::Revoked { revoked, .. } => {
                    for id in revoked.leases {
                        self.saw("revoked");
                        self.mine.remove(&id).expect("revoked a live lease");
                        self.gone.push(id);
                    }
                }
                Event::LimitChanged { .. } | Event::RatesSettled { .. } => {}
            }
        }
    }

    fn issued(&self) -> Vec<LeaseId> {
        let issued = self
            .mine
            .iter()
            .filter(|(_, mine)| mine.naming == Naming::Issued);
        issued.map(|(id, _)| *id).collect()
    }

    fn release(&mut self) {
        let again = self.chance(0.1);
        let from = if again {
            self.gone.clone()
        } else {
            self.issued()
        };
        let Some(id) = self.pick(&from) else { return };
        let outcome = [Outcome::Success, Outcome::Dropped, Outcome::Ignored][self.below(3)];
        let release = Release {
            id,
            holder: None,
            outcome,
            held: None,
            service_time: None,
            actual_permits: None,
        };
        let status = self.bench.book.release(&release, self.bench.now);
        self.saw(status.label());
        let released = matches!(status, ReleaseStatus::Released { .. });
        assert_eq!(released, self.mine.remove(&id).is_some(), "{status:?}");
        self.gone.push(id);
    }

    fn release_by_name(&mut self) {
        let (key, _) = self.pick(&self.rules.clone()).unwrap();
        if self.chance(0.3) {
            let live: HashSet<LeaseId> = self.live(key).collect();
            self.bench
                .book
                .release_anonymous(key, Outcome::Success, None, self.bench.now);
            let left: HashSet<LeaseId> = self.live(key).collect();
            for id in live.difference(&left) {
                assert_eq!(self.mine.remove(id).unwrap().naming, Naming::Anonymous);
                self.saw("anonymous");
            }
            return;
        }
        let name = CounterKey::from_bits(100 + self.random.random_range(0..12));
        let held = |mine: &Mine| mine.naming == Naming::Named(name) && mine.items[0].0 == key;
        let mine = self
            .mine
            .iter()
            .find(|(_, mine)| held(mine))
            .map(|(id, _)| *id);
        let status =
            self.bench
                .book
                .release_named(key, name, Outcome::Success, None, self.bench.now);
        assert_eq!(
            matches!(status, ReleaseStatus::Released { .. }),
            mine.is_some(),
            "{status:?}"
        );
        self.saw(format!("named {}", status.label()));
        if let Some(id) = mine {
            self.mine.remove(&id);
        }
    }

    fn live(&self, key: CounterKey) -> impl Iterator<Item = LeaseId> {
        self.bench
            .book
            .leases(key, 1_000, self.bench.now)
            .into_iter()
            .map(|lease| lease.id)
    }

    fn renew(&mut self) {
        let from = if self.chance(0.1) {
            self.gone.clone()
        } else {
            self.issued()
        };
        let Some(id) = self.pick(&from) else { return };
        let ttl = millis(1_000 + self.random.random_range(0..3_000));
        let status = self.bench.book.renew(&id, None, Some(ttl), self.bench.now);
        let now = self.bench.now;
        match (self.mine.get_mut(&id), status) {
            (Some(mine), RenewStatus::Renewed { .. }) => {
                mine.expires = mine.expires.max((now + ttl).min(mine.latest));
                self.saw("renewed");
            }
            (None, RenewStatus::Gone(_) | RenewStatus::Unknown) => self.saw("gone"),
            (mine, status) => panic!("{mine:?} but {status:?}"),
        }
    }

    fn undo(&mut self) {
        let ids: Vec<LeaseId> = self.mine.keys().copied().collect();
        let Some(id) = self.pick(&ids) else { return };
        let why = if self.chance(0.5) {
            Undo::Left
        } else {
            Undo::TimedOut
        };
        self.bench.book.undo(&[id], why, self.bench.now);
        let mine = self.mine.get_mut(&id).unwrap();
        mine.claims -= 1;
        if mine.claims == 0 {
            self.mine.remove(&id);
            self.saw("undone");
        } else {
            self.saw("disclaimed");
        }
    }

    fn leave(&mut self) {
        let tickets: Vec<Ticket> = self.waiting.iter().map(|(ticket, _)| *ticket).collect();
        let Some(ticket) = self.pick(&tickets) else {
            return;
        };
        assert!(self.bench.book.leave(ticket, self.bench.now));
        assert!(!self.bench.book.leave(ticket, self.bench.now));
        self.waiting.retain(|(known, _)| *known != ticket);
        self.saw("left");
    }

    fn session(&mut self) {
        let now = self.bench.now;
        let some = self.pick(&self.sessions.clone());
        match (self.below(4), some) {
            (0, Some(opened)) => {
                // The grace begins once; losing a lost stream again changes nothing.
                self.ending.entry(opened.token).or_insert(now + GRACE);
                self.bench.book.lose_session(opened.stream, now);
            }
            (1, Some(opened)) => {
                let resumed = self.bench.book.resume_session(opened.token, now).unwrap();
                self.ending.remove(&opened.token);
                // The end of the old stream means nothing now.
                self.bench.book.lose_session(opened.stream, now);
                self.bench.book.close_session(opened.stream, now);
                self.sessions.retain(|known| known.token != opened.token);
                self.sessions.push(resumed);
                self.saw("resumed");
            }
            (2, Some(opened)) if self.chance(0.2) => {
                self.bench.book.close_session(opened.stream, now);
                self.sessions.retain(|known| known.token != opened.token);
                self.ending.remove(&opened.token);
                self.forget_session(opened.token);
                self.saw("closed");
            }
            _ if self.sessions.len() < 4 => {
                let opened = self.bench.book.open_session(GRACE, now);
                self.sessions.push(opened);
            }
            _ => {}
        }
    }

    fn change_limit(&mut self) {
        let place = self.below(self.rules.len());
        let permits = self.random.random_range(0..12);
        let (key, _) = self.rules[place];
        let changed = variant(place, permits);
        self.rules[place].1 = Arc::clone(&changed);
        self.bench.book.set_rule(key, &changed, self.bench.now);
        self.events();
    }

    fn check(&mut self) {
        for (key, _) in self.rules.clone() {
            let listed = self.bench.book.leases(key, 100_000, self.bench.now);
            let sum: u64 = listed.iter().map(|lease| lease.permits).sum();
            let of_key = |mine: &Mine| {
                let parts = mine.items.iter().filter(|(known, _)| *known == key);
                parts.map(|(_, permits)| permits).sum::<u64>()
            };
            let known: u64 = self.mine.values().map(of_key).sum();
            let shown = self.bench.in_flight(key);
            let strange = listed
                .iter()
                .find(|lease| !self.mine.contains_key(&lease.id));
            assert_eq!((shown, shown), (sum, known), "{key:?}: {strange:?}");
        }
        if self.below(10) == 0 {
            self.bench.audit();
            self.events();
        }
    }
}

/// The rule of a key at some limit; each key has its own switches.
fn variant(place: usize, permits: u64) -> Arc<ConcurrencyRule> {
    rule(permits, |rule| {
        rule.max_lifetime = LIFETIME;
        rule.path = format!("limit {place}").into();
        rule.waiting.max_waiters = 5;
        match place {
            1 => rule.waiting.heavy_patience = Some(millis(20)),
            2 => {
                rule.waiting.under_share_wait = Some(millis(50));
                rule.on_shrink = OnShrink::RevokeNewest;
            }
            3 => rule.shedding = Shedding::PriorityWait(millis(40)),
            4 => {
                rule.waiting.newest_first = true;
                rule.shadow = true;
            }
            _ => {}
        }
    })
}

fn walk(seeds: std::ops::Range<u64>, steps: u32) {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in seeds {
        let mut walk = Walk::new(seed);
        for _ in 0..steps {
            walk.step();
        }
        // In the end nothing is left behind.
        walk.bench.now = walk.bench.now + Span::from_secs(1_000);
        walk.turn();
        walk.bench.audit();
        assert_eq!(walk.in_flight(), 0);
        assert!(walk.waiting.is_empty());
        assert_eq!(walk.bench.book.sizes().0, 0);
        for (what, count) in walk.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    for what in [
        "granted",
        "replayed",
        "refused",
        "never",
        "conflict",
        "ended",
        "would_grant",
        "waits",
        "settled granted",
        "settled refused",
        "released",
        "already_released",
        "late",
        "session_lost",
        "revoked",
        "renewed",
        "gone",
        "undone",
        "left",
        "resumed",
        "closed",
        "named released",
        "named unknown",
        "anonymous",
    ] {
        assert!(seen.contains_key(what), "never {what}: {seen:?}");
    }
}

#[test]
fn random_walks_balance() {
    let long = std::env::var_os("PORTEIRO_LONG").is_some();
    walk(0..if long { 200 } else { 12 }, 1_500);
}

/// The queue of one key under a storm: the book never forgets a permit or a waiter.
#[test]
fn a_book_survives_a_flood_within_its_bounds() {
    let bounds = Bounds {
        leases: 200,
        keys: 50,
        leases_per_holder: 150,
        waiters: 20,
        bookings: 30,
        marks: 30,
        ..Bounds::default()
    };
    let mut bench = Bench::with(bounds);
    let mut random = StdRng::seed_from_u64(1);
    let rule = rule(10, |_| {});
    let (mut granted, mut full) = (0, 0);
    for step in 0..20_000_u64 {
        bench.now = bench.now + Span::from_micros(random.random_range(0..300));
        let key = CounterKey::from_bits(u128::from(random.random_range(0..5_000_u64)));
        let request = step.to_le_bytes();
        let name = CounterKey::from_bits(u128::from(step));
        let items = [Item::one(key, &rule)];
        let ask = Ask {
            holder: holder(if random.random::<bool>() { "x" } else { "" }),
            request_id: &request,
            naming: if random.random::<bool>() {
                Naming::Issued
            } else {
                Naming::Named(name)
            },
            max_wait: Some(millis(5)),
            ..Ask::new(&items)
        };
        match bench.book.acquire(&ask, bench.now) {
            Ok(reply) => granted += u64::from(matches!(reply, Reply::Now(a) if a.is_go())),
            Err(_) => full += 1,
        }
        bench.book.release_named(
            key,
            CounterKey::from_bits(7),
            Outcome::Success,
            None,
            bench.now,
        );
        bench.book.take_events();
        assert_within(&bench.book, &bounds);
    }
    assert!(
        granted > 100 && full > 100,
        "{granted} granted, {full} full"
    );
}

fn assert_within(book: &LeaseBook, bounds: &Bounds) {
    let (leases, _, waiters) = book.sizes();
    assert!(leases <= bounds.leases && waiters <= bounds.waiters);
}
