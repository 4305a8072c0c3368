//! The scenarios of work in flight with their accepted numbers, in virtual time.
//!
//! Without `PORTEIRO_LONG=1` each runs with the few seeds that a quick build can afford; with it,
//! with as many as the acceptance names (minutes, unless built with `--profile fast`).

use porteiro::{
    algorithm::concurrency::law::{
        AimdSettings, Gradient2Settings, Guard as Kept, LawSettings, TargetSettings, VegasSettings,
    },
    model::time::Span,
    rules::concurrency::{ConcurrencyRule, OnRestart, Shedding},
    simulate::concurrency::{
        accuracy, adaptive, classes, collapse, heavy, hints, leaks, neighbours, restart, slowdown,
        stacked,
    },
};

fn is_long() -> bool {
    std::env::var_os("PORTEIRO_LONG").is_some_and(|value| value == "1")
}

/// One run per seed.
fn runs<R>(quick: u64, long: u64, run: impl Fn(u64) -> R) -> Vec<R> {
    let seeds = if is_long() { long } else { quick };
    (1..=seeds).map(run).collect()
}

fn mean<R>(runs: &[R], figure: impl Fn(&R) -> f64) -> f64 {
    let count = u32::try_from(runs.len()).unwrap();
    runs.iter().map(figure).sum::<f64>() / f64::from(count)
}

#[track_caller]
fn near(what: &str, got: f64, expected: f64, tolerance: f64) {
    println!("{what}: {got:.3}, expected {expected} ± {tolerance}");
    assert!(
        (got - expected).abs() <= tolerance,
        "{what}: {got}, expected {expected} ± {tolerance}"
    );
}

#[track_caller]
fn at_least(what: &str, got: f64, least: f64) {
    println!("{what}: {got:.4}, at least {least}");
    assert!(got >= least, "{what}: {got} is less than {least}");
}

#[track_caller]
fn at_most(what: &str, got: f64, most: f64) {
    println!("{what}: {got:.4}, at most {most}");
    assert!(got <= most, "{what}: {got} is more than {most}");
}

fn count(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

#[test]
fn s3_goodput_survives_behind_a_gate_and_dies_behind_a_queue() {
    use collapse::{Policy, Retries};
    let queue = |newest_first, drop_expired| Policy::Queue {
        newest_first,
        drop_expired,
    };
    let run = |policy, retries, quick, long| {
        runs(quick, long, |seed| collapse::run(policy, retries, seed))
    };
    let early = |runs: &[collapse::Figures]| mean(runs, |run| run.good_early);
    let late = |runs: &[collapse::Figures]| mean(runs, |run| run.good_late);

    let fifo = run(queue(false, false), Retries::None, 2, 5);
    at_most("FIFO, 20 to 60 s", late(&fifo), 1.0);
    near(
        "FIFO, recovery",
        mean(&fifo, |run| run.recovery.unwrap()),
        141.0,
        8.0,
    );
    for (permits, first, then) in [(25, 91.7, 93.8), (30, 97.4, 99.9)] {
        let gate = run(Policy::Gate(permits), Retries::None, 1, 3);
        near(&format!("gate {permits}, early"), early(&gate), first, 1.5);
        near(&format!("gate {permits}, late"), late(&gate), then, 1.5);
        near(
            "gate, recovery",
            mean(&gate, |run| run.recovery.unwrap()),
            0.0,
            0.0,
        );
    }
    let full = run(Policy::BoundedQueue(75), Retries::None, 1, 3);
    near("queue 75", late(&full), 100.0, 0.1);
    let dead = run(Policy::BoundedQueue(200), Retries::None, 1, 3);
    at_most("queue 200", late(&dead), 0.0);
    if !is_long() {
        return;
    }
    let full = run(Policy::BoundedQueue(175), Retries::None, 1, 3);
    near("queue 175", late(&full), 100.0, 0.1);
    near(
        "queue 200, recovery",
        mean(&dead, |run| run.recovery.unwrap()),
        2.3,
        1.0,
    );
    let storm = run(queue(false, false), Retries::OnTimeout, 1, 3);
    assert!(
        storm.iter().all(|run| run.recovery.is_none()),
        "a retry storm recovered"
    );
    at_least("retry storm, wasted", mean(&storm, |run| run.wasted), 0.95);
    let polite = run(Policy::Gate(25), Retries::OnRefusal, 1, 3);
    near("gate 25 with retries, late", late(&polite), 98.35, 0.5);
    near(
        "gate 25 with retries, attempts",
        mean(&polite, |run| run.attempts),
        1.46,
        0.05,
    );
    for (newest_first, drop_expired) in [(false, true), (true, false), (true, true)] {
        let kept = run(queue(newest_first, drop_expired), Retries::None, 1, 3);
        near(
            "queue that drops or serves the newest",
            late(&kept),
            100.0,
            0.1,
        );
    }
}

#[test]
fn s3b_a_rate_limit_does_not_see_a_slow_service() {
    let rate = runs(3, 20, |seed| slowdown::run(slowdown::Guard::Rate(95), seed));
    near(
        "rate, admitted",
        mean(&rate, |run| run.admitted_slow),
        95.0,
        1.5,
    );
    near("rate, good", mean(&rate, |run| run.good_normal), 95.0, 1.5);
    near(
        "rate, good when slow",
        mean(&rate, |run| run.good_slow),
        0.0,
        0.0,
    );
    near(
        "rate, good after",
        mean(&rate, |run| run.good_after),
        0.0,
        0.0,
    );
    let gate = runs(3, 20, |seed| {
        slowdown::run(slowdown::Guard::Concurrency(25), seed)
    });
    near("gate, good", mean(&gate, |run| run.good_normal), 93.9, 1.5);
    near(
        "gate, admitted when slow",
        mean(&gate, |run| run.admitted_slow),
        49.1,
        1.5,
    );
    near(
        "gate, good when slow",
        mean(&gate, |run| run.good_slow),
        49.1,
        1.5,
    );
    near(
        "gate, good after",
        mean(&gate, |run| run.good_after),
        93.8,
        1.5,
    );
}

#[test]
fn s4_small_tenants_beside_a_loud_one() {
    use neighbours::Policy;
    let millis = Span::from_millis;
    let run = |policy, quick, long| runs(quick, long, |seed| neighbours::run(policy, seed));
    let ok = |runs: &[neighbours::Figures]| mean(runs, |run| run.small_ok);
    let wait = run(Policy::UnderShareWait(millis(100)), 1, 10);
    at_least("under-share wait, small", ok(&wait), 0.995);
    at_least(
        "under-share wait, in use",
        mean(&wait, |run| run.utilisation),
        0.98,
    );
    near(
        "under-share wait, loud",
        mean(&wait, |run| run.loud),
        58.9,
        2.0,
    );
    if !is_long() {
        return;
    }
    // For comparison: everything else costs the small ones, or the limit.
    for (policy, small, in_use) in [
        (Policy::None, 0.328, 0.98),
        (Policy::HardCap(3), 0.986, 0.59),
        (Policy::HardCap(1), 0.668, 0.37),
        (Policy::Reserve(3), 0.939, 0.91),
        (Policy::Reserve(8), 0.996, 0.77),
        (Policy::LoudCap(15), 0.830, 0.91),
        (Policy::LoudCap(8), 0.978, 0.76),
        (Policy::UnderShareWait(millis(20)), 0.860, 0.99),
        (Policy::UnderShareWait(millis(50)), 0.978, 0.99),
        (Policy::EveryoneWaits(millis(100)), 0.332, 1.0),
    ] {
        let runs = run(policy, 1, 4);
        near(&format!("{policy:?}, small"), ok(&runs), small, 0.01);
        near(
            &format!("{policy:?}, in use"),
            mean(&runs, |run| run.utilisation),
            in_use,
            0.015,
        );
    }
}

#[test]
fn s5_a_leak_costs_what_the_formula_says() {
    let leak = |share, ttl, detection, tick| leaks::Leak {
        share,
        ttl,
        detection,
        tick,
    };
    // Share, TTL, detection, tolerance; whether it is worth a quick run.
    let table = [
        (leak(0.01, Some(60.0), None, None), 2.0, false),
        (leak(0.01, Some(10.0), None, None), 1.0, false),
        (leak(0.01, Some(2.0), None, None), 1.0, true),
        (leak(0.001, Some(60.0), None, None), 2.0, false),
        (leak(0.001, Some(10.0), None, None), 1.0, false),
        (leak(0.01, Some(60.0), Some(0.05), None), 1.0, true),
        (leak(0.01, Some(60.0), Some(1.0), None), 1.0, false),
    ];
    for (leak, tolerance, quick) in table {
        if quick || is_long() {
            let runs = runs(1, 10, |seed| leaks::run(leak, seed));
            let erlang = runs[0].erlang;
            near(
                &format!("{leak:?}"),
                mean(&runs, |run| run.admitted),
                erlang,
                tolerance,
            );
            assert!(runs.iter().all(|run| run.view.conservation_error == 0.0));
        }
    }
    let dead = runs(1, 10, |seed| leaks::run(leak(0.01, None, None, None), seed));
    for run in dead {
        assert!(
            run.last_second < 300,
            "a leak without an end lets {} s pass",
            run.last_second
        );
    }
    if is_long() {
        // What a sweeper would cost that notices ends once a second.
        let coarse = leak(0.01, Some(2.0), None, Some(1.0));
        let coarse = runs(1, 10, |seed| leaks::run(coarse, seed));
        near(
            "a tick of 1 s",
            mean(&coarse, |run| run.admitted),
            106.4,
            0.7,
        );
    }
}

#[test]
fn s6_a_stacked_decision_wastes_nothing() {
    let atomic = runs(20, 40, |seed| stacked::run(stacked::Order::Atomic, seed));
    for run in &atomic {
        assert_eq!((run.ok, run.quota_used, run.burned), (60, 60, 0));
    }
    let naive = runs(20, 40, |seed| stacked::run(stacked::Order::RateFirst, seed));
    near(
        "rate first, served",
        mean(&naive, |run| count(run.ok)),
        11.6,
        1.5,
    );
    near(
        "rate first, burned",
        mean(&naive, |run| count(run.burned)),
        48.5,
        1.5,
    );
}

#[test]
fn s7_the_most_critical_lose_nothing() {
    let wait = |millis| Shedding::PriorityWait(Span::from_millis(millis));
    let priority = runs(1, 10, |seed| classes::run(wait(100), seed));
    at_least(
        "priority wait, first class",
        mean(&priority, |run| run.ok[0]),
        0.995,
    );
    at_least(
        "priority wait, total",
        mean(&priority, |run| run.total),
        118.5,
    );
    if !is_long() {
        return;
    }
    let thresholds = |second, third| Shedding::Thresholds([1.0, second, third, third]);
    for (shedding, ok, total) in [
        (thresholds(1.0, 1.0), [0.484, 0.484, 0.486], 116.2),
        (thresholds(0.8, 0.6), [0.995, 0.526, 0.012], 92.5),
        (thresholds(0.9, 0.7), [0.975, 0.655, 0.028], 100.8),
        (wait(100), [0.999, 0.773, 0.113], 119.7),
        (wait(30), [0.914, 0.610, 0.237], 119.5),
    ] {
        let runs = runs(1, 4, |seed| classes::run(shedding, seed));
        for (class, expected) in ok.into_iter().enumerate() {
            let what = format!("{shedding:?}, class {class}");
            near(&what, mean(&runs, |run| run.ok[class]), expected, 0.01);
        }
        near(
            &format!("{shedding:?}, total"),
            mean(&runs, |run| run.total),
            total,
            1.0,
        );
    }
}

/// The law that a rule has which only says `target_latency`.
fn ours(millis: u64) -> adaptive::Rule {
    let settings = LawSettings::Target(TargetSettings::new(Span::from_millis(millis)));
    let rule = ConcurrencyRule::new("adaptive", settings);
    adaptive::Rule::Law(rule.limit, rule.window)
}

#[test]
fn s8_the_default_law_follows_the_service_down_and_up() {
    let runs = runs(2, 10, |seed| adaptive::run(ours(350), seed));
    for (phase, least) in [98.0, 44.0, 98.0].into_iter().enumerate() {
        at_least(
            &format!("phase {phase}"),
            mean(&runs, |run| run.good[phase]),
            least,
        );
    }
    let before = mean(&runs, |run| run.latency[0]);
    near(
        "latency after and before",
        mean(&runs, |run| run.latency[2]) / before,
        1.0,
        0.05,
    );
    for run in &runs {
        at_least("a run, slow phase", run.good[1], 30.0);
        at_most(
            "a run, latency after and before",
            run.latency[2] / run.latency[0],
            1.12,
        );
    }
}

#[test]
fn s8_the_default_law_is_safe_at_any_target() {
    let targets: &[u64] = if is_long() {
        &[300, 350, 400, 450, 500, 600, 700]
    } else {
        &[700]
    };
    for target in targets {
        let runs = runs(1, 10, |seed| adaptive::run(ours(*target), seed));
        at_least(
            &format!("{target} ms, slow phase"),
            mean(&runs, |run| run.good[1]),
            42.0,
        );
        for run in &runs {
            let most = f64::from(u32::try_from(*target).unwrap()) / 1e3 * 1.1;
            at_most(&format!("{target} ms, latency after"), run.latency[2], most);
        }
    }
}

/// What the other laws do on the same service, and why none of them is the default.
#[test]
fn s8_other_laws_show_their_weaknesses() {
    let second = Some(Span::from_secs(1));
    let law = |settings, window| adaptive::Rule::Law(settings, window);
    let target = |millis, guard| {
        let settings = TargetSettings::new(Span::from_millis(millis));
        law(
            LawSettings::Target(TargetSettings { guard, ..settings }),
            second,
        )
    };
    let run = |rule| runs(1, 10, |seed| adaptive::run(rule, seed));
    let slow = |runs: &[adaptive::Figures]| mean(runs, |run| run.good[1]);
    let after = |runs: &[adaptive::Figures]| mean(runs, |run| run.latency[2]);
    let before = |runs: &[adaptive::Figures]| mean(runs, |run| run.latency[0]);

    let bare = run(target(350, Kept::None));
    near("no guard, slow phase", slow(&bare), 4.0, 1.0);
    let envoy = run(adaptive::Rule::Envoy { measured: false });
    near("Envoy, fixed baseline, slow phase", slow(&envoy), 7.3, 2.0);
    if !is_long() {
        return;
    }
    let fixed = run(law(LawSettings::Fixed(25), second));
    near(
        "fixed 25, before",
        mean(&fixed, |run| run.good[0]),
        96.7,
        1.5,
    );
    near("fixed 25, slow phase", slow(&fixed), 49.4, 1.5);
    let open = run(law(LawSettings::Fixed(200), second));
    near("fixed 200, slow phase", slow(&open), 0.0, 0.0);
    let aimd = AimdSettings {
        min: 5,
        timeout: Span::from_millis(500),
        ..AimdSettings::default()
    };
    let aimd = run(law(LawSettings::Aimd(aimd), None));
    near("AIMD per request, slow phase", slow(&aimd), 19.1, 3.0);
    let vegas = run(law(LawSettings::Vegas(VegasSettings::default()), None));
    near(
        "Vegas per request, before",
        mean(&vegas, |run| run.good[0]),
        25.7,
        2.0,
    );
    let gradient = Gradient2Settings {
        min: 5,
        ..Gradient2Settings::default()
    };
    let gradient = run(law(LawSettings::Gradient2(gradient), second));
    near("Gradient2, slow phase", slow(&gradient), 50.0, 1.5);
    near("Gradient2, latency after", after(&gradient), 0.744, 0.05);
    let measured = run(adaptive::Rule::Envoy { measured: true });
    // The baseline that is measured in the incident stays.
    let drift = after(&measured) / before(&measured);
    at_least("Envoy, measured baseline, latency after", drift, 1.6);
    let floor = run(target(350, Kept::Floor));
    near("floor, slow phase", slow(&floor), 47.3, 3.0);
    near("floor, latency after", after(&floor), 0.351, 0.01);
    // Half of the noise of a one-second window is why the default has two.
    let short = run(target(350, Kept::Knee));
    near("knee at one second, slow phase", slow(&short), 43.8, 2.5);
}

#[test]
fn s9_a_slot_of_the_virtual_queue_beats_every_back_off() {
    use hints::Policy;
    let run = |policy| runs(3, 10, |seed| hints::run(policy, seed));
    let attempts = |runs: &[hints::Figures]| mean(runs, |run| run.attempts);
    let failed = |runs: &[hints::Figures]| mean(runs, |run| count(run.failed));
    let others = [
        Policy::Fixed(1.0),
        Policy::Fixed(0.1),
        Policy::FullJitter,
        Policy::EqualJitter,
    ]
    .map(|policy| (policy, run(policy)));
    for policy in [
        Policy::Hint { estimated: true },
        Policy::Hint { estimated: false },
        Policy::Count,
    ] {
        let ours = run(policy);
        at_most(&format!("{policy:?}, attempts"), attempts(&ours), 1.4);
        at_most(&format!("{policy:?}, failed"), failed(&ours), 3.0);
        for (other, theirs) in &others {
            at_most(
                &format!("attempts, {other:?}"),
                attempts(&ours),
                attempts(theirs),
            );
            at_most(&format!("failed, {other:?}"), failed(&ours), failed(theirs));
        }
    }
}

#[test]
fn s9b_a_hint_is_what_a_queue_would_cost() {
    let load = |offered, permits, hold| accuracy::Load {
        offered,
        permits,
        hold,
        seconds: 4_000.0,
    };
    let table = [
        (load(110.0, 30, 0.25), 0.94, false),
        (load(118.0, 30, 0.25), 0.98, false),
        (load(9.5, 10, 1.0), 0.96, true),
    ];
    for (load, correlation, quick) in table {
        if quick || is_long() {
            // Load of 95 %: single runs differ by half.
            let runs = runs(4, 12, |seed| accuracy::run(load, seed));
            let told = mean(&runs, |run| run.told);
            let waited = mean(&runs, |run| run.real);
            near(&format!("{load:?}, real to told"), waited / told, 1.0, 0.02);
            let found = mean(&runs, |run| run.correlation);
            at_least(&format!("{load:?}, correlation"), found, correlation);
        }
    }
}

#[test]
fn s10_a_restart_never_doubles_the_work_unless_it_forgets() {
    let run = |mode| runs(10, 20, |seed| restart::run(mode, seed));
    let admitted = |runs: &[restart::Figures]| mean(runs, |run| count(run.admitted));
    let forget = run(OnRestart::Forget);
    at_least("forget, peak", mean(&forget, |run| count(run.peak)), 46.0);
    let quarantine = run(OnRestart::Quarantine);
    for mode in [
        OnRestart::Quarantine,
        OnRestart::Reattach,
        OnRestart::Snapshot,
    ] {
        let runs = run(mode);
        assert!(runs.iter().all(|run| run.peak == 30), "{mode:?}: {runs:?}");
        if mode != OnRestart::Quarantine {
            let least = 1.2 * admitted(&quarantine);
            at_least(&format!("{mode:?}, admitted"), admitted(&runs), least);
        }
    }
}

#[test]
fn s11_a_wide_request_does_not_starve_when_its_place_is_kept() {
    use heavy::Policy;
    let seconds = if is_long() { 3_000.0 } else { 1_000.0 };
    let run = |policy| runs(1, 4, |seed| heavy::run(policy, seconds, seed));
    let light = |runs: &[heavy::Figures]| mean(runs, |run| run.light_ok);
    let wide = |runs: &[heavy::Figures]| mean(runs, |run| run.heavy_ok);
    let refuse = run(Policy::Refuse);
    // Kaufman–Roberts.
    near("refuse, light", light(&refuse), 0.925_31, 0.005);
    near("refuse, heavy", wide(&refuse), 0.194_31, 0.025);
    let reserve = run(Policy::Reserve);
    at_least("place kept, heavy", wide(&reserve), 0.99);
    near("place kept, light", light(&reserve), 0.762, 0.012);
    if is_long() {
        let wait = run(Policy::Wait);
        near("may wait, light", light(&wait), 0.8565, 0.006);
        near("may wait, heavy", wide(&wait), 0.75, 0.02);
    }
}
