//! Real threads on one book: whatever they interleave, permits in flight are those of the live
//! leases, at every moment that anybody looks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use porteiro::{
    model::{
        key::CounterKey,
        lease::{LeaseId, Outcome, ReleaseStatus},
        time::{ManualClock, Span, Timestamp},
    },
    rules::concurrency::ConcurrencyRule,
    store::{
        Store,
        lease::{Ask, Bounds, Item, Release, Undo},
        leases::{Acquired, Book, Leases},
        memory::{MemoryOptions, MemoryStore},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use smallvec::SmallVec;

use crate::leases::{holder, millis, rule};

const THREADS: u64 = 16;
const STEPS: u32 = 2_000;
const KEYS: [u64; 3] = [1, 2, 5];

/// What all threads share.
struct Crowd {
    book: Arc<Book>,
    clock: ManualClock,
    rules: Vec<(CounterKey, Arc<ConcurrencyRule>)>,
    granted: AtomicU64,
    refused: AtomicU64,
    released: AtomicU64,
    expired: AtomicU64,
    looked: AtomicU64,
}

impl Crowd {
    fn new() -> Self {
        let store = Store::from(MemoryStore::new(MemoryOptions::default()));
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        let leases = Leases::new(&store, Bounds::default(), clock.clock());
        let book = leases.of_domain(&"d".into(), clock.now()).unwrap();
        let rules = KEYS.iter().map(|permits| {
            let rule = rule(*permits, |rule| {
                rule.path = format!("limit {permits}").into();
                rule.waiting.max_waiters = 5;
            });
            (CounterKey::from_bits((*permits).into()), rule)
        });
        Self {
            book,
            rules: rules.collect(),
            clock,
            granted: AtomicU64::default(),
            refused: AtomicU64::default(),
            released: AtomicU64::default(),
            expired: AtomicU64::default(),
            looked: AtomicU64::default(),
        }
    }

    /// One thread's share, decided by its seed.
    fn work(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut mine: Vec<LeaseId> = Vec::new();
        for step in 0..STEPS {
            match random.random_range(0..10) {
                0..4 => self.acquire(&mut random, seed, step, &mut mine),
                4..7 => self.release(&mut random, &mut mine),
                7 => self.renew(&mut random, &mine),
                8 => self.clock.advance(millis(random.random_range(0..200))),
                _ => {}
            }
            self.look();
        }
        for id in mine {
            self.end(id);
        }
    }

    fn acquire(&self, random: &mut StdRng, seed: u64, step: u32, mine: &mut Vec<LeaseId>) {
        let items: Vec<Item> = self
            .rules
            .iter()
            .filter(|_| random.random_bool(0.5))
            .map(|(key, rule)| Item::one(*key, rule))
            .collect();
        if items.is_empty() {
            return;
        }
        let request = format!("{seed} {step}");
        let ask = Ask {
            holder: holder(&format!("thread {seed}")),
            request_id: request.as_bytes(),
            ttl: Some(Span::from_secs(1)),
            max_wait: random.random_bool(0.3).then(|| millis(50)),
            ..Ask::new(&items)
        };
        let clock = self.clock.clock();
        let now = self.clock.now();
        let acquired = self.book.acquire(&ask, SmallVec::new(), &clock, now);
        match acquired.unwrap() {
            Acquired::Now(answer, _) if answer.is_go() => {
                self.granted.fetch_add(1, Ordering::Relaxed);
                if random.random_bool(0.1) {
                    self.book.undo(&answer, &[], Undo::Left, self.clock.now());
                } else {
                    mine.extend(&answer.leases);
                }
            }
            Acquired::Now(..) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            // Given up at some moment: before or after another thread has granted it.
            Acquired::Waits(pending) => {
                for _ in 0..random.random_range(0..3) {
                    thread::yield_now();
                }
                drop(pending);
            }
        }
    }

    fn release(&self, random: &mut StdRng, mine: &mut Vec<LeaseId>) {
        if !mine.is_empty() {
            let place = random.random_range(0..mine.len());
            self.end(mine.swap_remove(place));
        }
    }

    fn end(&self, id: LeaseId) {
        let release = Release {
            id,
            holder: None,
            outcome: Outcome::Success,
            held: None,
            service_time: None,
            actual_permits: None,
        };
        let counted = match self.book.release(&release, self.clock.now()) {
            ReleaseStatus::Released { .. } => &self.released,
            // Of those that ended by themselves only the latest are remembered.
            ReleaseStatus::Late { .. } | ReleaseStatus::Unknown => &self.expired,
            other => panic!("{other:?}"),
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }

    fn renew(&self, random: &mut StdRng, mine: &[LeaseId]) {
        if !mine.is_empty() {
            let id = &mine[random.random_range(0..mine.len())];
            let ttl = Some(Span::from_secs(1));
            let _ = self.book.renew(id, None, ttl, self.clock.now());
        }
    }

    /// Permits in flight are those of the live leases, and no more than there are.
    fn look(&self) {
        let now = self.clock.now();
        self.book.with(now, |book| {
            for (key, rule) in &self.rules {
                let Some(view) = book.peek(*key, now.steady) else {
                    continue;
                };
                let leases = book.leases(*key, usize::MAX, now.steady);
                let permits: u64 = leases.iter().map(|lease| lease.permits).sum();
                assert_eq!(
                    (view.in_flight, view.leases),
                    (permits, leases.len() as u64)
                );
                assert!(permits <= rule.limit.most(), "{permits} of {key:?}");
            }
        });
        self.looked.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn threads_never_lose_or_invent_a_permit() {
    let crowd = Crowd::new();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let crowd = &crowd;
            scope.spawn(move || crowd.work(seed));
        }
    });
    let counts = [
        &crowd.granted,
        &crowd.refused,
        &crowd.released,
        &crowd.expired,
    ];
    // Each way was taken often enough to mean something.
    for count in counts {
        assert!(count.load(Ordering::Relaxed) > 100, "{count:?}");
    }
    let looked = crowd.looked.load(Ordering::Relaxed);
    assert_eq!(looked, THREADS * u64::from(STEPS));
    crowd.clock.advance(Span::from_secs(10));
    let now = crowd.clock.now();
    crowd.book.with(now, |book| {
        for limit in book.limits(now.steady) {
            assert_eq!((limit.in_flight, limit.leases), (0, 0));
            assert_eq!(limit.waiters, 0);
            assert!(limit.conservation_error == 0.0, "{limit:?}");
        }
    });
}
