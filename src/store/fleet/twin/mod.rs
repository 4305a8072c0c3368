//! The script beside the lease book, in one process: thousands of random histories must come out
//! the same.
//!
//! Known differences, which the histories avoid: an expired lease is remembered from its expiry on
//! and not from when somebody noticed it (so the book is called at each expiry), and counts in no
//! bound on what is remembered; of a request that a rate limit refuses no slot is booked.

mod trace;

use std::{collections::BTreeMap, sync::Arc};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use smallvec::SmallVec;

use super::Request;
use crate::{
    model::{
        key::CounterKey,
        lease::{Criticality, Decision, Holder, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        limit::{Algorithm, Anchor, Quota},
        time::{ManualClock, Now, Span, Timestamp},
    },
    rules::{OnStoreFailure, Stacking, concurrency::ConcurrencyRule, limit::Limit},
    store::{
        Store,
        charges::{Outcomes, Role},
        lease::{Answer, Ask, AskError, Bounds, Item, ItemState, LeaseView, Naming, Release, Undo},
        leases::{self, Acquired, Book, Leases, RateUnits},
        memory::{MemoryOptions, MemoryStore},
        redis::lease::{
            How, Message, Request as Call, Word, fake::Fake, leases as listed, releases, renewals,
            standings,
        },
    },
};

const DOMAIN: &str = "twin";

/// An id that the script is given.
fn id(number: u64) -> LeaseId {
    LeaseId {
        boot: super::NO_BOOT,
        book: 7,
        sequence: number,
        secret: number * 31 % 1_000,
    }
}

/// Asks the script as a process does that has no session for the request.
fn ask_script(
    fake: &Fake,
    request: &Request,
    ids: &[LeaseId],
    owner: &str,
    now: Timestamp,
) -> Option<(Answer, Outcomes)> {
    let charges = leases::charges(&request.rates);
    let call = Call {
        order: &request.order,
        rules: &request.rules,
        charges: &charges,
        ids,
        adopt: &request.adopt,
        expected_hold: request.expected_hold,
        owner,
        life: if owner.is_empty() {
            request.order.ttl
        } else {
            Span::from_secs(15)
        },
        bound: 1_000,
        how: How {
            dry_run: request.dry_run,
            partial: request.partial,
            impossible: request.impossible.is_some(),
            ..How::default()
        },
    };
    let (granting, outcomes) = fake.acquire(&call, now);
    assert!(!matches!(granting.word, Word::Void | Word::UnknownWindow));
    (granting.word != Word::Full).then(|| (request.answer(&granting, &outcomes, 0, now), outcomes))
}

struct History {
    random: StdRng,
    clock: ManualClock,
    book: Arc<Book>,
    keys: Vec<(CounterKey, Arc<ConcurrencyRule>)>,
    /// The book's id and the script's.
    leases: Vec<(LeaseId, LeaseId)>,
    issued: u64,
    place: String,
    seen: BTreeMap<&'static str, u64>,
}

fn rule(random: &mut StdRng, place: usize) -> Arc<ConcurrencyRule> {
    let limit = random.random_range(0..6);
    let mut rule = ConcurrencyRule::fixed(&format!("twin.{place}"), limit);
    rule.lease_ttl = Span::from_millis(random.random_range(1_000..5_000));
    rule.max_lifetime = Span::from_secs(8);
    rule.shadow = random.random_bool(0.15);
    rule.shared = random.random_bool(0.5);
    rule.hints.booking = random.random_bool(0.7);
    rule.hints.jitter = 0.0;
    rule.estimates.exposure = random.random_bool(0.5);
    rule.estimates.alpha = random.random_range(0.05..0.9);
    Arc::new(rule)
}

fn window(units: u64) -> Limit {
    let quota = Quota::per(units, Span::from_secs(10)).unwrap();
    Limit::new(Algorithm::FixedWindow(Anchor::FirstHit), quota)
}

fn close(theirs: f64, ours: f64, what: &str) {
    let tolerance = 3e-6 + ours.abs() * 1e-6;
    assert!(
        (theirs - ours).abs() <= tolerance,
        "{what}: {theirs} and not {ours}"
    );
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let clock = ManualClock::at(Timestamp::from_secs(1_774_745_999));
        let store = Store::from(MemoryStore::new(MemoryOptions::default()));
        let leases = Leases::new(&store, Bounds::default(), clock.clock());
        let book = leases.of_domain(&DOMAIN.into(), clock.now()).unwrap();
        let keys = (0..random.random_range(1..4))
            .map(|place| {
                let key = CounterKey::from_bits(u128::try_from(place).unwrap() + 1);
                (key, rule(&mut random, place))
            })
            .collect();
        Self {
            random,
            clock,
            book,
            keys,
            leases: Vec::new(),
            issued: 0,
            place: String::new(),
            seen: BTreeMap::new(),
        }
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn next_expiry(&self) -> Option<Span> {
        let now = self.now();
        let soonest = self.keys.iter().filter_map(|(key, _)| {
            let leases = self.book.with(now, |book| book.leases(*key, 1, now.steady));
            leases.first().map(|lease| lease.expires_in)
        });
        soonest.min()
    }

    /// Forward, often to an expiry or to just before it.
    fn step(&mut self) {
        let micros = |micros| Span::from_micros(micros);
        let by = match self.random.random_range(0..10) {
            0..3 => Span::ZERO,
            3..6 => micros(self.random.random_range(1..200_000)),
            6..8 => micros(self.random.random_range(1..2_000_000)),
            8 => self.next_expiry().unwrap_or_default(),
            _ => self
                .next_expiry()
                .unwrap_or_default()
                .saturating_sub(micros(1)),
        };
        let mut left = by;
        while let Some(next) = self.next_expiry().filter(|next| *next <= left) {
            self.clock.advance(next);
            self.book.with(self.now(), |_| ());
            left = left.saturating_sub(next);
        }
        self.clock.advance(left);
        self.book.with(self.now(), |_| ());
    }

    fn names(&mut self) -> Option<CounterKey> {
        (self.random.random_bool(0.5))
            .then(|| CounterKey::from_bits(u128::from(self.random.random_range(900..903_u32))))
    }

    fn item(&mut self) -> Item {
        let (key, rule) = &self.keys[self.random.random_range(0..self.keys.len())];
        let (key, rule) = (*key, Arc::clone(rule));
        let most = rule.limit.most().max(1);
        let permits = if self.random.random_bool(0.7) {
            1
        } else {
            self.random.random_range(1..=most + 1)
        };
        Item {
            least: self.random.random_range(1..=permits),
            ..Item::many(key, &rule, permits)
        }
    }

    fn acquire(&mut self, fake: &Fake) {
        let items: Vec<Item> = (0..self.random.random_range(1..4))
            .map(|_| self.item())
            .collect();
        let naming = match self.random.random_range(0..10) {
            0..6 => Naming::Issued,
            6..8 => Naming::Named(CounterKey::from_bits(u128::from(
                self.random.random_range(900..903_u32),
            ))),
            _ => Naming::Anonymous,
        };
        let limit = window(4);
        let rates: SmallVec<[RateUnits; 2]> = (0..self.random.random_range(0..2))
            .map(|_| RateUnits {
                key: CounterKey::from_bits(u128::from(self.random.random_range(77..79_u32)) << 32),
                limit: limit.clone(),
                cost: self.random.random_range(1..3),
                role: Role::Enforced,
                shadow: false,
                shared: false,
            })
            .collect();
        let request_id = if rates.is_empty() && naming == Naming::Issued {
            format!("r{}", self.random.random_range(0..6))
        } else {
            String::new()
        };
        let classes = Criticality::ALL;
        let partial = self.random.random_bool(0.1);
        let dry_run = self.random.random_bool(0.1);
        let expected = self.random.random_bool(0.2);
        let ask = Ask {
            holder: Holder {
                id: format!("h{}", self.random.random_range(0..2)).into(),
                instance: "i".into(),
            },
            request_id: if self.random.random_bool(0.6) {
                request_id.as_bytes()
            } else {
                &[]
            },
            naming,
            ttl: (self.random.random_bool(0.3))
                .then(|| Span::from_micros(self.random.random_range(1_000_000..9_000_000))),
            expected_hold: expected.then(|| Span::from_millis(self.random.random_range(1..4_000))),
            max_wait: Some(Span::ZERO),
            criticality: classes[self.random.random_range(0..classes.len())],
            cohort: (self.random.random_bool(0.3)).then(|| self.random.random_range(0..128)),
            partial,
            dry_run,
            ..Ask::new(&items)
        };
        let now = self.now();
        let ours = self
            .book
            .acquire(&ask, rates.clone(), &self.clock.clock(), now);
        let request = Request::new(&ask, rates.clone(), OnStoreFailure::Local, Span::MAX).unwrap();
        let ids: Vec<LeaseId> = (0..request.leases())
            .map(|place| id(self.issued + place as u64))
            .collect();
        self.issued += ids.len() as u64;
        let theirs = ask_script(fake, &request, &ids, "", now.wall);
        let (ours, our_rates) = match ours {
            Ok(Acquired::Now(answer, outcomes)) => (answer, outcomes),
            Ok(Acquired::Waits(_)) => panic!("nobody waits here"),
            Err(AskError::BookFull) => return assert!(theirs.is_none()),
            Err(error) => panic!("{error}"),
        };
        let (theirs, their_rates) = theirs.unwrap();
        let asked: Vec<_> = items
            .iter()
            .map(|item| (item.key.bits(), item.permits, item.least))
            .collect();
        let told = format!(
            "{}: {asked:?} {naming:?} partial {partial} dry {dry_run} rates {} id {:?}\n{:?}\n\
             ours {ours:?}\ntheirs {theirs:?}",
            self.place,
            rates.len(),
            ask.request_id,
            self.keys
                .iter()
                .map(|(_, rule)| &rule.limit)
                .collect::<Vec<_>>(),
        );
        assert_eq!(theirs.decision, ours.decision, "{told}");
        self.count(ours.decision.label());
        if matches!(ours.decision, Decision::Conflict | Decision::Ended(_)) {
            return;
        }
        if !their_rates.is_empty() || ours.decision == Decision::Granted {
            let allowed = |outcomes: &Outcomes| {
                let left = outcomes.iter().map(|o| (o.allowed, o.remaining));
                left.collect::<Vec<_>>()
            };
            assert_eq!(allowed(&their_rates), allowed(&our_rates), "{told}");
        }
        compare(&theirs, &ours, &told);
        let known: Vec<LeaseId> = self.leases.iter().map(|(ours, _)| *ours).collect();
        for (our_id, their_id) in ours.leases.iter().zip(&theirs.leases) {
            if known.contains(our_id) {
                assert!(self.leases.contains(&(*our_id, *their_id)), "{told}");
            } else {
                self.leases.push((*our_id, *their_id));
            }
        }
        if ours.decision == Decision::Granted && self.random.random_bool(0.1) {
            self.undo(fake, &ours, &theirs, &rates);
        }
    }

    /// The answer never left.
    fn undo(&mut self, fake: &Fake, ours: &Answer, theirs: &Answer, rates: &[RateUnits]) {
        self.count("undo");
        let now = self.now();
        let why = if self.random.random_bool(0.5) {
            Undo::TimedOut
        } else {
            Undo::Left
        };
        self.book.undo(ours, rates, why, now);
        let mut refunds = leases::charges(rates);
        refunds.terms.stacking = Stacking::Independent;
        refunds
            .list
            .iter_mut()
            .for_each(|charge| charge.refund = true);
        let timed_out = why == Undo::TimedOut;
        fake.run(
            &fake.undoing(&theirs.leases, timed_out, &refunds, now.wall),
            now.wall,
        );
    }

    fn lease(&mut self) -> (LeaseId, LeaseId) {
        if self.leases.is_empty() || self.random.random_bool(0.05) {
            let mut never = id(1_000_000);
            never.secret = 5;
            let mut ours = never;
            ours.boot = 9;
            return (ours, never);
        }
        self.leases[self.random.random_range(0..self.leases.len())]
    }

    fn release(&mut self, fake: &Fake) {
        let (ours, theirs) = self.lease();
        let holder = ["h0", "h1"][self.random.random_range(0..2)];
        let release = Release {
            id: ours,
            holder: (self.random.random_bool(0.5)).then_some(holder),
            outcome: [Outcome::Success, Outcome::Dropped, Outcome::Ignored]
                [self.random.random_range(0..3)],
            held: (self.random.random_bool(0.3))
                .then(|| Span::from_micros(self.random.random_range(0..3_000_000))),
            service_time: None,
            actual_permits: None,
        };
        let now = self.now();
        let ours = self.book.release(&release, now);
        let message = Message::release(&[Release {
            id: theirs,
            ..release
        }]);
        let (statuses, _) = releases(fake.run(&message, now.wall)).unwrap();
        let ours = match ours {
            // The book knows the boot of its ids, the script has none in them.
            ReleaseStatus::OtherBoot => ReleaseStatus::Unknown,
            other => other,
        };
        assert_eq!(statuses, [ours], "{}: {release:?}", self.place);
        self.count(ours.label());
    }

    fn renew(&mut self, fake: &Fake) {
        let (ours, theirs) = self.lease();
        let ttl = (self.random.random_bool(0.7))
            .then(|| Span::from_micros(self.random.random_range(500_000..10_000_000)));
        let holder = (self.random.random_bool(0.5)).then_some("h0");
        let now = self.now();
        let ours = match self.book.renew(&ours, holder, ttl, now) {
            RenewStatus::OtherBoot => RenewStatus::Unknown,
            other => other,
        };
        let message = Message::renew(&[(theirs, holder, ttl)]);
        let statuses = renewals(fake.run(&message, now.wall)).unwrap();
        assert_eq!(statuses, [ours], "{}: {ttl:?}", self.place);
        self.count("renew");
    }

    fn release_by(&mut self, fake: &Fake) {
        let (key, _) = self.keys[self.random.random_range(0..self.keys.len())];
        let name = self.names();
        let outcome = [Outcome::Success, Outcome::Ignored][self.random.random_range(0..2)];
        let now = self.now();
        let ours = self.book.release_by(key, name, outcome, None, now);
        let message = Message::release_by(key, name, outcome);
        let (statuses, _) = releases(fake.run(&message, now.wall)).unwrap();
        assert_eq!(statuses, [ours], "{}: {name:?}", self.place);
        self.count("release_by");
    }

    fn look(&self, fake: &Fake) {
        let now = self.now();
        for (key, rule) in &self.keys {
            let ours = self.book.with(now, |book| book.peek(*key, now.steady));
            let theirs = standings(fake.run(&Message::peek(&[*key]), now.wall)).unwrap();
            let (Some(ours), Some(theirs)) = (&ours, theirs[0]) else {
                // A counter that was never written is as one that nobody asked for.
                assert!(ours.as_ref().is_none_or(|view| view.in_flight == 0));
                continue;
            };
            assert_eq!(
                (theirs.in_flight, theirs.leases),
                (ours.in_flight, ours.leases)
            );
            if !rule.estimates.exposure {
                // What is still held is estimated as of the last call by the book, as of now here.
                close(theirs.mean_hold, ours.mean_hold, "mean hold");
            }
            let shown = |leases: Vec<LeaseView>| {
                let shown = |l: LeaseView| (l.holder, l.instance, l.permits, l.in_session);
                let mut shown: Vec<_> = leases.into_iter().map(shown).collect();
                shown.sort();
                shown
            };
            let ours = self
                .book
                .with(now, |book| book.leases(*key, 1_000, now.steady));
            let theirs = listed(fake.run(&Message::peek_leases(&[*key], 1_000), now.wall));
            let theirs = theirs.unwrap().pop().unwrap();
            assert_eq!(shown(theirs), shown(ours), "{}", self.place);
        }
    }
}

/// Two answers to the same request.
fn compare(theirs: &Answer, ours: &Answer, told: &str) {
    assert_eq!(theirs.leases.len(), ours.leases.len(), "{told}");
    assert_eq!(theirs.limiting, ours.limiting, "{told}");
    assert_eq!(theirs.offender, ours.offender, "{told}");
    close(
        theirs.expires_in.as_secs_f64(),
        ours.expires_in.as_secs_f64(),
        "life",
    );
    if matches!(ours.decision, Decision::Never | Decision::UnknownKey) {
        return;
    }
    for (theirs, ours) in theirs.items.iter().zip(&ours.items) {
        let counts = |item: &ItemState| {
            let ItemState {
                limit,
                in_flight,
                remaining,
                granted,
                shadow_short,
                ..
            } = *item;
            (limit, in_flight, remaining, granted, shadow_short)
        };
        assert_eq!(counts(theirs), counts(ours), "{told}");
        close(theirs.mean_hold, ours.mean_hold, told);
        close(theirs.throughput, ours.throughput, told);
        assert_eq!(
            (theirs.cause, theirs.shared),
            (ours.cause, ours.shared),
            "{told}"
        );
    }
    if ours.decision == Decision::Refused {
        assert_eq!(theirs.cause, ours.cause, "{told}");
        assert_eq!(theirs.shared, ours.shared, "{told}");
        let wait = |answer: &Answer| answer.retry_after.map_or(-1.0, Span::as_secs_f64);
        close(wait(theirs), wait(ours), told);
    }
}

#[test]
fn random_histories_agree() {
    let fake = Fake::new();
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..HISTORIES {
        fake.begin();
        let mut history = History::new(seed);
        for step in 0..STEPS {
            history.place = format!("history {seed}, step {step}");
            history.step();
            match history.random.random_range(0..20) {
                0..10 => history.acquire(&fake),
                10..15 => history.release(&fake),
                15..17 => history.renew(&fake),
                _ => history.release_by(&fake),
            }
            history.look(&fake);
        }
        for (what, count) in history.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    // Histories that only refuse prove nothing.
    for what in [
        "granted",
        "refused",
        "replayed",
        "conflict",
        "ended",
        "never",
        "would_grant",
        "undo",
        "released",
        "already_released",
        "late",
        "unknown",
        "not_holder",
        "renew",
        "release_by",
    ] {
        let count = seen.get(what).copied().unwrap_or_default();
        assert!(count >= 50, "{what}: {count} of {seen:?}");
    }
}

const HISTORIES: u64 = 2_000;
const STEPS: usize = 30;
