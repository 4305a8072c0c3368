//! Knobs that change a number, each beside other values of itself.

use porteiro::{
    model::time::Span,
    rules::concurrency::ConcurrencyRule,
    store::lease::{Ask, Item},
};

use crate::leases::{Bench, KEY, millis, rule};

/// What callers are told, one after the other, by a limit of one permit that was just granted.
fn told(callers: usize, change: impl FnOnce(&mut ConcurrencyRule)) -> Vec<Span> {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| {
        rule.estimates.prior_hold = Span::from_secs(10);
        rule.lease_ttl = Span::from_secs(600);
        change(rule);
    });
    bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let mut ask = || bench.ask(&Ask::new(&items)).retry_after.unwrap();
    (0..callers).map(|_| ask()).collect()
}

#[test]
fn booking_gives_everybody_another_time() {
    let seconds = |all: [u64; 3]| all.map(Span::from_secs);
    assert_eq!(told(3, |_| {}), seconds([10, 20, 30]));
    let alike = told(3, |rule| rule.hints.booking = false);
    assert_eq!(alike, seconds([10, 10, 10]));
}

#[test]
fn jitter_adds_up_to_its_share_and_takes_nothing_away() {
    let hints = told(300, |rule| {
        rule.hints.booking = false;
        rule.hints.jitter = 0.5;
    });
    let (least, most) = (hints.iter().min().unwrap(), hints.iter().max().unwrap());
    let within = |low: u64, hint: &Span, high: u64| {
        Span::from_secs(low) <= *hint && *hint <= Span::from_secs(high)
    };
    assert!(within(10, least, 11), "{least:?}");
    assert!(within(14, most, 15), "{most:?}");
}

#[test]
fn a_drained_limit_says_what_it_was_told_to_say() {
    let mut bench = Bench::new();
    let rule = rule(0, |rule| rule.hints.when_drained = Span::from_secs(7));
    let refused = bench.ask(&Ask::new(&[Item::one(KEY, &rule)]));
    assert_eq!(refused.retry_after, Some(Span::from_secs(7)));
}

#[test]
fn alpha_is_the_weight_of_the_newest_hold() {
    for (alpha, mean) in [(0.2, 8.4), (0.5, 6.0), (1.0, 2.0)] {
        let mut bench = Bench::new();
        let rule = rule(1, |rule| {
            rule.estimates.prior_hold = Span::from_secs(10);
            rule.estimates.alpha = alpha;
        });
        let id = bench.take(&rule);
        bench.pass(2_000);
        bench.release(id);
        let found = bench.book.finished_hold(KEY).unwrap();
        assert!((found - mean).abs() < 1e-9, "{alpha}: {found}");
    }
}

#[test]
fn a_hold_that_has_not_ended_counts_with_its_memory() {
    let shown = |exposure: bool, tau: u64| {
        let mut bench = Bench::new();
        let rule = rule(1, |rule| {
            rule.estimates.prior_hold = millis(1);
            rule.estimates.exposure = exposure;
            rule.estimates.memory = Span::from_secs(tau);
        });
        bench.take(&rule);
        bench.pass(1_000);
        bench.ask(&Ask::new(&[Item::one(KEY, &rule)])).items[0].mean_hold
    };
    // τ·(1 − e^(−1/τ)): one permit for a second, nothing ended.
    for (tau, hold) in [(2, 0.786_938_68), (10, 0.951_625_82)] {
        let found = shown(true, tau);
        assert!((found - hold).abs() < 1e-8, "{tau}: {found}");
    }
    assert!((shown(false, 2) - 1e-3).abs() < 1e-12);
}
