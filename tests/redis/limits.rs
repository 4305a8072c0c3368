//! Limits and requests for the tests.

use std::sync::Arc;

use porteiro::{
    model::{
        key::CounterKey,
        limit::{Algorithm, Anchor, Calendar, CalendarUnit, Quota},
        time::{Clock, Span},
    },
    rules::{Stacking, limit::Limit},
    store::{
        Charge, Charges, Outcomes,
        redis::{RedisOptions, RedisStore},
    },
};

/// Long enough that a busy machine does not decide the test.
pub(crate) const PATIENT: Span = Span::from_secs(5);

pub(crate) fn limit(algorithm: Algorithm, quota: Quota) -> Limit {
    Limit {
        count_denied: true,
        ..Limit::new(algorithm, quota)
    }
}

/// In windows that do not end while a slow machine runs a test.
pub(crate) fn per_hour(units: u64) -> Limit {
    let quota = Quota::per(units, Span::from_secs(3_600)).unwrap();
    limit(Algorithm::FixedWindow(Anchor::FirstHit), quota)
}

pub(crate) fn calendar(unit: CalendarUnit) -> Algorithm {
    Algorithm::FixedWindow(Anchor::Calendar(Calendar {
        unit,
        zone: jiff::tz::TimeZone::get("Europe/Lisbon").unwrap(),
        zone_name: Arc::from("Europe/Lisbon"),
    }))
}

pub(crate) fn charge(key: u128, limit: &Limit) -> Charge<'_> {
    Charge::new(CounterKey::from_bits(key << 32), limit, 1)
}

pub(crate) fn one(key: u128, limit: &Limit) -> Charges<'_> {
    several(&[(key, limit)], Stacking::Independent)
}

pub(crate) fn several<'l>(charges: &[(u128, &'l Limit)], stacking: Stacking) -> Charges<'l> {
    let list = charges
        .iter()
        .enumerate()
        .map(|(place, (key, limit))| Charge {
            descriptor: place,
            ..charge(*key, limit)
        });
    Charges {
        list: list.collect(),
        terms: stacking.into(),
    }
}

/// A store that waits long.
pub(crate) fn patient(url: &str) -> RedisStore {
    let options = RedisOptions {
        deadline: PATIENT,
        silence: PATIENT,
        ..RedisOptions::parse(url).unwrap()
    };
    RedisStore::connect(options, Clock::machine())
}

/// Asks until there is an answer, and says how long that took.
pub(crate) async fn until_answered(
    store: &RedisStore,
    domain: &str,
    charges: &Charges<'_>,
) -> (Span, Outcomes) {
    let clock = Clock::machine();
    let start = clock.now().steady;
    loop {
        if let Ok(outcomes) = store.decide(domain, charges, PATIENT).await {
            return (clock.now().steady.since(start), outcomes);
        }
        assert!(
            clock.now().steady.since(start) < Span::from_secs(30),
            "{:?} {:?}",
            store.health(),
            store.snapshot()
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Waits until the store's probe says so.
pub(crate) async fn until_health(store: &RedisStore, up: bool) {
    for _ in 0..1_000 {
        if store.health().is_up == up {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("health is {:?}", store.health());
}
