//! Counts of limits whose rules went away.

use porteiro::{
    model::{key::CounterKey, time::Span},
    store::lease::{Ask, Bounds, Item},
};

use super::{Bench, rule};

#[test]
fn counts_of_limits_whose_rules_went_away_are_bounded() {
    let mut bench = Bench::with(Bounds {
        limits: 5,
        ..Bounds::default()
    });
    for load in 0..10_000_u64 {
        let path = format!("work-{load}");
        let limit = rule(1, |rule| rule.path = path.as_str().into());
        let known = |asked: &str| (asked == path).then(|| limit.clone());
        bench.book.reload(known, bench.now);
        let key = CounterKey::from_bits(u128::from(load));
        let answer = bench.ask(&Ask::new(&[Item::one(key, &limit)]));
        bench.release(answer.leases[0]);
        // So long that the key is forgotten, and with it the last who needs the counts.
        bench.pass(700_000);
        bench.book.sweep(10, bench.now);
        let limits = bench.book.limits(bench.now);
        assert!(limits.len() <= 5 + 2, "{load}: {}", limits.len());
        let last = limits.last().unwrap();
        assert_eq!(
            (&*last.path, last.counts.decisions.get("granted")),
            (&*path, 1)
        );
    }
}

#[test]
fn a_key_that_is_still_used_keeps_its_counts_where_they_are() {
    let mut bench = Bench::with(Bounds {
        limits: 0,
        ..Bounds::default()
    });
    let [gone, held, live] = ["gone", "held", "live"].map(|path| {
        rule(9, |rule| {
            rule.path = path.into();
            rule.lease_ttl = Span::from_secs(3_600);
            rule.max_lifetime = Span::from_secs(3_600);
        })
    });
    let mut leases = Vec::new();
    for (key, limit) in [(1, &gone), (2, &held), (3, &live)] {
        let item = Item::one(CounterKey::from_bits(key), limit);
        leases.push(bench.ask(&Ask::new(&[item])).leases[0]);
    }
    bench.release(leases[0]);
    bench.pass(700_000);
    bench.book.sweep(10, bench.now);
    let known = |path: &str| (path == "live").then(|| live.clone());
    bench.book.reload(known, bench.now);
    let item = Item::one(CounterKey::from_bits(3), &live);
    assert!(bench.ask(&Ask::new(&[item])).is_go());
    let limits = bench.book.limits(bench.now);
    let counted: Vec<_> = limits
        .iter()
        .map(|limit| (&*limit.path, limit.counts.decisions.get("granted")))
        .collect();
    assert_eq!(counted, [("held", 1), ("live", 2)]);
}
