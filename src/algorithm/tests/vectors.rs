//! The peers' vectors that concern one counter, read from `tests/cases/peer-vectors.json`.

use serde_json::Value;

use super::*;
use crate::algorithm::calendar::window;

fn file() -> Value {
    let text = include_str!("../../../tests/cases/peer-vectors.json");
    serde_json::from_str(text).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap()
}

#[test]
fn exact_buckets() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue,
    ] {
        for case in list(&file(), "exact_bucket") {
            exact_bucket(case, &algorithm);
        }
    }
}

fn exact_bucket(case: &Value, algorithm: &Algorithm) {
    let id = text(case, "id");
    let rate = &case["rate"];
    let period = millis(number(rate, "per_ms"));
    let quota = Quota::new(number(rate, "tokens"), period, number(case, "capacity")).unwrap();
    let mut counter = Counter::new(algorithm.clone(), quota);
    for (n, step) in list(case, "steps").iter().enumerate() {
        let now = START + millis(number(step, "t_ms"));
        let outcome = counter.take(now, number(step, "cost"));
        let result = match outcome.retry {
            Retry::Never => ("NEVER", None),
            Retry::After(Span::ZERO) => ("ALLOW", None),
            Retry::After(wait) => ("WAIT", Some(wait.as_millis_up())),
        };
        let wanted = (text(step, "result"), step["retry_after_ms"].as_u64());
        assert_eq!(result, wanted, "{id} step {n}");
        assert_eq!(outcome.allowed, wanted.0 == "ALLOW", "{id} step {n}");
        assert_eq!(
            outcome.remaining,
            number(step, "remaining"),
            "{id} step {n}"
        );
    }
}

#[test]
fn redis_cell_resets() {
    // V06 to V09: the resets are in peers.md only.
    let quota = Quota::new(1, Span::from_secs(1), 5).unwrap();
    let mut counter = Counter::new(Algorithm::TokenBucket, quota);
    let mut reset = |t: u64, cost| counter.take(START + millis(t), cost).reset.as_millis_up();
    let drained: Vec<u64> = (0..6).map(|_| reset(0, 1)).collect();
    assert_eq!(drained, [1_000, 2_000, 3_000, 4_000, 5_000, 5_000]);
    assert_eq!(reset(3_000, 1), 3_000);
    assert_eq!(reset(3_100, 1), 3_900);
    assert_eq!(reset(4_000, 1), 4_000);
    assert_eq!(reset(8_000, 1), 1_000);
    assert_eq!(reset(9_500, 1), 1_000);
    assert_eq!(reset(9_500, 2), 3_000);
}

#[test]
fn calendar_ends() {
    for case in list(&file(), "calendar_ends_utc") {
        let unit = calendar_unit(text(case, "unit"));
        let Algorithm::FixedWindow(Anchor::Calendar(calendar)) = calendar(unit, "UTC") else {
            panic!("a calendar")
        };
        let now = Timestamp::ZERO + millis(number(case, "now_ms"));
        // The peer names the last millisecond of the window, we its end.
        let end = Timestamp::ZERO + millis(number(case, "end_ms") + 1);
        assert_eq!(window(&calendar, now).1, end, "{unit:?}");
    }
}

fn calendar_unit(name: &str) -> CalendarUnit {
    match name {
        "minute" => CalendarUnit::Minute,
        "hour" => CalendarUnit::Hour,
        "day" => CalendarUnit::Day,
        "month" => CalendarUnit::Month,
        "year" => CalendarUnit::Year,
        other => panic!("no unit {other}"),
    }
}

/// What we want where it is not what gubernator does: (case, step, admitted, remaining).
const WANTED: &[(&str, usize, bool, u64)] = &[
    ("D02", 0, false, 0),
    ("D02", 1, false, 0),
    ("D02", 2, false, 0),
    ("D05", 4, true, 1),
    ("D05", 5, true, 1),
    ("D06", 2, true, 50),
    ("D08", 1, true, 0),
    ("D08", 2, false, 0),
    ("D10", 1, true, 1),
    ("D12", 1, true, 0),
    ("D12", 2, false, 0),
    ("D13", 0, true, 10),
    ("D13", 1, false, 10),
    ("D14", 0, true, 10),
    // The one unit used of a hundred is kept; the peer's leaky bucket forgets it.
    ("G15", 6, true, 8),
    ("G15", 7, true, 7),
];

#[test]
fn gubernator() {
    let mut ran = 0;
    for case in list(&file(), "gubernator") {
        match text(case, "id") {
            // A duration of nothing is refused when rules load.
            "G14a" => assert!(Quota::per(10, Span::ZERO).is_err()),
            // A refused request that empties the bucket is not offered for buckets.
            "G07" => {}
            id => {
                ran += 1;
                gubernator_case(id, case);
            }
        }
    }
    assert_eq!(ran, 22);
}

/// The peer's "token bucket" is a window that the first hit opens; its leaky bucket is one.
fn limit_of(case: &Value, changes: &Value) -> (Algorithm, Quota) {
    let either = |name: &str, change: &str| changes[change].as_u64().or(case[name].as_u64());
    let units = either("limit", "limit").unwrap();
    let mut period = millis(either("duration_ms", "dur").unwrap());
    let options = &case["options"];
    let burst = changes["burst"].as_u64().or(options["burst"].as_u64());
    let leaky = changes["algo"] == "LB" || text(case, "algorithm") == "leaky_bucket_meter";
    let gregorian = options["gregorian"].as_str().map(calendar_unit);
    if gregorian.is_some() {
        assert_eq!(gregorian, Some(CalendarUnit::Minute));
        period = Span::from_secs(60);
    }
    let algorithm = match gregorian {
        _ if leaky => Algorithm::LeakyBucket,
        Some(unit) => calendar(unit, "UTC"),
        None => Algorithm::FixedWindow(Anchor::FirstHit),
    };
    (
        algorithm,
        Quota::new(units, period, burst.unwrap_or(units)).unwrap(),
    )
}

fn gubernator_case(id: &str, case: &Value) {
    let (algorithm, quota) = limit_of(case, &Value::Null);
    let mut counter = Counter::new(algorithm, quota);
    counter.count_denied = case["options"]["drain"] == true;
    let mut now = Timestamp::ZERO + millis(number(case, "base_ms"));
    for (n, step) in list(case, "steps").iter().enumerate() {
        now = now + millis(number(step, "wait_ms"));
        let (algorithm, quota) = limit_of(case, &step["override"]);
        if (&algorithm, quota) != (&counter.algorithm, counter.quota) {
            counter = counter.carried(algorithm, quota, now);
        }
        let hits = step["hits"].as_i64().unwrap();
        let was_fresh = counter.until() <= now;
        let outcome = if let Ok(cost) = u64::try_from(hits) {
            counter.take(now, cost)
        } else {
            counter.give_back(now, hits.unsigned_abs());
            counter.look(now, 0)
        };
        let own = WANTED.iter().find(|own| (own.0, own.1) == (id, n));
        let wanted = match own {
            Some((_, _, allowed, remaining)) => (*allowed, *remaining),
            // Our peek says whether one more would pass.
            None if hits == 0 => (number(step, "remaining") > 0, number(step, "remaining")),
            None => (text(step, "status") == "UNDER", number(step, "remaining")),
        };
        assert_eq!(
            (outcome.allowed, outcome.remaining),
            wanted,
            "{id} step {n}"
        );
        let over = u64::try_from(hits).is_ok_and(|cost| cost > counter.capacity());
        let never = over || counter.capacity() == 0;
        assert_eq!(outcome.retry == Retry::Never, never, "{id} step {n}");
        // The peer opens a window for a peek and for a refusal too.
        let untouched = was_fresh && (hits == 0 || !outcome.allowed);
        if own.is_none() && !untouched {
            reset_agrees(&counter, outcome.reset, step, &format!("{id} step {n}"));
        }
    }
}

/// The peer's calendar names the last millisecond; its leaky bucket rounds up to whole units, shows
/// nothing for less than a millisecond each, and lies in the past above the limit.
fn reset_agrees(counter: &Counter, reset: Span, step: &Value, place: &str) {
    let peer = step["reset_in_ms"].as_i64().unwrap();
    let peer = millis(u64::try_from(peer).unwrap_or(0));
    match counter.algorithm {
        Algorithm::FixedWindow(Anchor::Calendar(_)) => {
            assert_eq!(reset, peer.saturating_add(millis(1)), "{place}");
        }
        Algorithm::LeakyBucket if counter.quota.burst() > counter.quota.units() => {}
        Algorithm::LeakyBucket if peer.is_zero() => {}
        Algorithm::LeakyBucket => {
            let unit = counter.quota.period().as_nanos() / counter.quota.units();
            let at_least = peer.saturating_sub(Span::from_nanos(unit));
            assert!(at_least < reset && reset <= peer, "{place}: {reset:?}");
        }
        _ => assert_eq!(reset, peer, "{place}"),
    }
}

#[test]
fn g10_fractions_of_a_unit_are_kept() {
    // 29 s from empty at one per 3 s is 9⅔; nine taken, 3 s and one taken, one second more: 1.
    let quota = Quota::per(10, Span::from_secs(30)).unwrap();
    let mut counter = Counter::new(Algorithm::LeakyBucket, quota);
    assert!(counter.take(START, 10).allowed);
    assert!(counter.take(START + Span::from_secs(29), 9).allowed);
    assert!(counter.take(START + Span::from_secs(32), 1).allowed);
    assert!(
        !counter
            .look(START + Span::from_secs(33) - Span::from_nanos(1), 1)
            .allowed
    );
    let last = counter.take(START + Span::from_secs(33), 1);
    assert_eq!((last.allowed, last.remaining), (true, 0));
}
