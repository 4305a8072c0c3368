//! Random histories against a real server, with its clock in our hand: the memory store is the
//! oracle, as it is for the script alone in `store/redis/twin`.

use porteiro::{
    algorithm::{Outcome, Retry},
    model::{
        limit::{Algorithm, Anchor, CalendarUnit, Quota},
        time::{Clock, ManualClock, Span, Timestamp},
    },
    rules::{Stacking, limit::Limit},
    store::{
        Charges,
        memory::{MemoryOptions, MemoryStore},
        redis::{RedisOptions, RedisStore},
    },
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::{
    limits::{PATIENT, calendar, limit, several, until_health},
    server::Server,
};

const HISTORIES: u64 = 60;
const STEPS: usize = 40;

fn up(span: Span) -> Span {
    Span::from_micros(span.as_nanos().div_ceil(1_000))
}

/// An outcome with spans in whole microseconds, as the store's clock ticks.
fn shown(outcome: Outcome) -> Outcome {
    Outcome {
        reset: up(outcome.reset),
        retry: match outcome.retry {
            Retry::After(wait) => Retry::After(up(wait)),
            Retry::Never => Retry::Never,
        },
        delay: up(outcome.delay),
        more: outcome.more.map(up),
        ..outcome
    }
}

fn limits(random: &mut StdRng) -> Vec<Limit> {
    [
        Algorithm::FixedWindow(Anchor::Clock),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::FixedWindow(Anchor::LastHit),
        calendar(CalendarUnit::Hour),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue,
    ]
    .into_iter()
    .map(|algorithm| {
        let units = random.random_range(1..20);
        // Longer than the test runs: keys expire by the server's own clock.
        let period = Span::from_micros(random.random_range(300_000_000..4_000_000_000));
        let quota = Quota::new(units, period, random.random_range(1..20)).unwrap();
        Limit {
            hold: random.random_bool(0.5),
            count_denied: random.random_bool(0.5),
            ..limit(algorithm, quota)
        }
    })
    .collect()
}

fn request<'l>(random: &mut StdRng, limits: &'l [Limit], history: u64) -> Charges<'l> {
    let charges: Vec<(u128, &Limit)> = (0..random.random_range(1..4))
        .map(|_| {
            let index = random.random_range(0..limits.len());
            (u128::from(history) << 32 | index as u128, &limits[index])
        })
        .collect();
    let stacking = if random.random_bool(0.5) {
        Stacking::AllOrNothing
    } else {
        Stacking::Independent
    };
    let mut charges = several(&charges, stacking);
    charges.terms.tell_more = random.random_bool(0.5);
    let patience = Span::from_micros(random.random_range(0..1_000_000_000));
    charges.terms.patience = random.random_bool(0.5).then_some(patience);
    for charge in &mut charges.list {
        charge.cost = random.random_range(0..5);
        charge.shadow = random.random_bool(0.2);
        charge.refund = stacking == Stacking::Independent && random.random_bool(0.2);
    }
    charges
}

#[tokio::test]
async fn the_server_and_the_memory_store_say_the_same() {
    let server = Server::start();
    let manual = ManualClock::at(Clock::machine().now().wall.floor(Span::from_micros(1)));
    let options = RedisOptions {
        deadline: PATIENT,
        // A probe's answer may tell the instant before ours moved the clock.
        silence: Span::from_secs(50 * 365 * 86_400),
        test_clock: Some(manual.clock()),
        ..RedisOptions::parse(&server.url()).unwrap()
    };
    let store = RedisStore::connect(options, manual.clock());
    until_health(&store, true).await;
    for history in 0..HISTORIES {
        let mut random = StdRng::seed_from_u64(history);
        let limits = limits(&mut random);
        let memory = MemoryStore::new(MemoryOptions::default());
        for step in 0..STEPS {
            if random.random_bool(0.6) {
                manual.advance(Span::from_micros(random.random_range(0..900_000_000)));
            }
            let now: Timestamp = manual.now().wall;
            let charges = request(&mut random, &limits, history);
            let theirs = store.decide("twin", &charges, PATIENT).await.unwrap();
            let ours: Vec<Outcome> = memory
                .decide(&charges, now)
                .into_iter()
                .map(shown)
                .collect();
            assert_eq!(
                theirs.to_vec(),
                ours,
                "history {history}, step {step}: {charges:#?}"
            );
        }
    }
}
