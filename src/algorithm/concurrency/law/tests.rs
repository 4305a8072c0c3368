use serde_json::Value;

use super::*;
use crate::algorithm::concurrency::{
    cases::{case, close, number, numbers, rows},
    real::{real, whole},
};

fn millis(value: f64) -> Span {
    Span::from_secs_f64(value / 1e3)
}

/// The settings of a vector; what it does not name keeps its default.
fn settings(kind: &str, params: &Value) -> LawSettings {
    let float = |name: &str, default: f64| params[name].as_f64().unwrap_or(default);
    let count = |name: &str, default: u64| params[name].as_u64().unwrap_or(default);
    match kind {
        "aimd" => {
            let default = AimdSettings::default();
            LawSettings::Aimd(AimdSettings {
                initial: count("init", default.initial),
                ..default
            })
        }
        "vegas" => {
            let default = VegasSettings::default();
            LawSettings::Vegas(VegasSettings {
                initial: count("init", default.initial),
                max: count("max", default.max),
                alpha: float("alpha", default.alpha),
                beta: float("beta", default.beta),
                smoothing: float("smoothing", default.smoothing),
                ..default
            })
        }
        "gradient2" => {
            let default = Gradient2Settings::default();
            LawSettings::Gradient2(Gradient2Settings {
                initial: count("init", default.initial),
                max: count("max", default.max),
                ..default
            })
        }
        other => panic!("no law {other}"),
    }
}

/// The state behind the limit.
fn value(law: &Law) -> f64 {
    match law {
        Law::Fixed(limit) => real(*limit),
        Law::Target(law) => law.value(),
        Law::Aimd(law) => real(law.limit()),
        Law::Vegas(law) => law.value(),
        Law::Gradient2(law) => law.value(),
    }
}

#[test]
fn compatible_laws_as_in_the_cases() {
    let case = case("adaptive-limits");
    let mut seen = 0;
    for vector in rows(&case, "vectors") {
        let kind = vector["kind"].as_str().unwrap();
        if !["aimd", "vegas", "gradient2"].contains(&kind) {
            continue;
        }
        seen += 1;
        // Step by step, as the product does it without a window.
        let mut controller = Controller::new(settings(kind, &vector["params"]), None, at(0));
        let mut got = Vec::new();
        for sample in rows(vector, "samples").iter().map(numbers) {
            let sample = Sample {
                latency: millis(sample[0]),
                in_flight: whole(sample[1]),
                dropped: sample[2] > 0.0,
            };
            controller.finished(sample, at(0));
            got.push(controller.limit());
        }
        let expected: Vec<u64> = numbers(&vector["limits"]).into_iter().map(whole).collect();
        assert_eq!(got, expected, "{}", vector["id"]);
        close(value(&controller.law), number(vector, "est"), 1e-4);
    }
    assert_eq!(seen, 17);
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A window of 1 s.
fn window(throughput: u64, latency: f64, in_flight: u64) -> Window {
    Window {
        elapsed: WINDOW,
        samples: throughput,
        dropped: 0,
        latency: Span::from_secs_f64(latency),
        in_flight,
    }
}

fn target(latency: f64, initial: u64, guard: Guard) -> Law {
    let target = Span::from_secs_f64(latency);
    LawSettings::Target(TargetSettings {
        initial,
        guard,
        ..TargetSettings::new(target)
    })
    .into()
}

#[test]
fn target_grows_holds_and_shrinks() {
    // The floor is never binding here, so all guards agree until the latency passes the target.
    let windows = [
        (80, 0.25, 20, 24.0000),
        (84, 0.25, 21, 26.2100),
        (90, 0.26, 24, 27.7770),
        (96, 0.28, 27, 29.1989),
        (98, 0.31, 31, 30.4617),
        (100, 0.34, 34, 31.5845),
        (100, 0.36, 36, 32.4897),
        (40, 0.36, 14, 32.4897),
        (100, 0.40, 38, 31.1467),
    ];
    let mut law = target(0.35, 20, Guard::Floor);
    for (throughput, latency, in_flight, expected) in windows {
        law.step(&window(throughput, latency, in_flight));
        close(value(&law), expected, 5.1e-5);
    }
}

/// LT2 and LT3: three windows at the target, then a service that alone takes twice as long.
fn collapse(guard: Guard) -> Vec<f64> {
    let mut law = target(0.35, 36, guard);
    let mut values = Vec::new();
    for step in 0..15 {
        let seen = if step < 3 {
            window(100, 0.36, 36)
        } else {
            window(50, 0.72, law.limit().min(36))
        };
        law.step(&seen);
        values.push(value(&law));
    }
    values
}

#[test]
fn the_floor_stops_the_collapse() {
    assert!(
        collapse(Guard::Floor)
            .iter()
            .all(|limit| (limit - 36.0).abs() < 1e-9)
    );
    let expected = [
        35.5, 35.25, 35.125, 32.4375, 29.2563, 26.3794, 24.0406, 22.2409, 20.8999, 19.9205,
        19.2147, 18.7104, 18.3524, 18.0992, 17.9207,
    ];
    for (got, expected) in collapse(Guard::None).into_iter().zip(expected) {
        close(got, expected, 5.1e-5);
    }
}

/// 25 workers, always more work than the limit lets through; a queue forms when the limit exceeds
/// the workers.
fn plant(limit: u64, service: f64) -> (f64, f64) {
    let busy = real(limit.min(25));
    (busy / service, service.max(real(limit) * service / 25.0))
}

fn closed_loop(mut limit: impl FnMut(f64, f64, u64) -> u64, initial: u64) -> Vec<u64> {
    let mut now = initial;
    (1..=180)
        .map(|second| {
            let service = if (61..=120).contains(&second) {
                0.5
            } else {
                0.25
            };
            let (throughput, latency) = plant(now, service);
            now = limit(throughput, latency, now).max(1);
            now
        })
        .collect()
}

#[test]
fn closed_loops_as_in_the_cases() {
    let adaptive = |settings: LawSettings| {
        let mut law = Law::from(settings);
        closed_loop(
            move |throughput, latency, in_flight| {
                // A window whose throughput is not a whole number: stretch it to 1000 s.
                let seen = Window {
                    elapsed: WINDOW.saturating_mul(1_000),
                    samples: whole((throughput * 1e3).round()),
                    dropped: 0,
                    latency: Span::from_secs_f64(latency),
                    in_flight,
                };
                law.step(&seen);
                law.limit()
            },
            20,
        )
    };
    let aimd = |millis| {
        let timeout = Span::from_millis(millis);
        LawSettings::Aimd(AimdSettings {
            min: 5,
            timeout,
            ..AimdSettings::default()
        })
    };
    let aim = |millis, guard| {
        let target = Span::from_millis(millis);
        LawSettings::Target(TargetSettings {
            guard,
            ..TargetSettings::new(target)
        })
    };
    let case = case("closed-loop");
    for row in rows(&case, "rows") {
        let id = row["id"].as_str().unwrap();
        let got = match id {
            "P1" => adaptive(aimd(500)),
            "P2" => adaptive(aimd(750)),
            "P3" => adaptive(LawSettings::Vegas(VegasSettings::default())),
            "P4" => adaptive(LawSettings::Gradient2(Gradient2Settings {
                min: 5,
                ..Gradient2Settings::default()
            })),
            "P5" => closed_loop(
                |_, latency, limit| {
                    let sample = Span::from_secs_f64(latency);
                    crate::algorithm::concurrency::peers::envoy_gradient(
                        limit,
                        millis(250.0),
                        sample,
                    )
                },
                20,
            ),
            "P6" => adaptive(aim(350, Guard::None)),
            "P7" => adaptive(aim(350, Guard::Floor)),
            "P8" => adaptive(aim(700, Guard::Floor)),
            "P9" => adaptive(aim(350, Guard::Knee)),
            "P10" => adaptive(aim(700, Guard::Knee)),
            other => panic!("no loop {other}"),
        };
        for (mark, expected) in row["limit_after_window"].as_object().unwrap() {
            let after: usize = mark.parse().unwrap();
            assert_eq!(
                got[after - 1],
                expected.as_u64().unwrap(),
                "{id} after window {mark}"
            );
        }
    }
}

/// What the compatible laws get wrong: drops must count, and a constant timeout is no success.
#[test]
fn the_default_law_falls_when_requests_are_dropped() {
    let mut law = target(0.35, 50, Guard::Knee);
    for _ in 0..5 {
        let before = law.limit();
        let dropped = Window {
            dropped: 200,
            ..window(200, 0.010, 50)
        };
        assert_eq!(law.step(&dropped), Reason::Drops);
        assert!(law.limit() < before);
    }
    let mut law = target(0.35, 20, Guard::Knee);
    for _ in 0..230 {
        let limit = law.limit();
        law.step(&window(100, 5.0, limit));
        assert!(law.limit() <= 20);
    }
}

#[test]
fn a_probe_that_costs_throughput_is_taken_back() {
    let mut law = target(0.35, 40, Guard::Knee);
    // Four tenths of a second at any limit: throughput follows the limit.
    let step = |law: &mut Law| {
        let limit = law.limit();
        let throughput = whole(real(limit) / 0.4);
        (law.step(&window(throughput, 0.4, limit)), law.limit())
    };
    assert_eq!(step(&mut law), (Reason::Hold, 40));
    assert_eq!(step(&mut law), (Reason::Hold, 40));
    assert_eq!(step(&mut law), (Reason::Probe, 30));
    assert_eq!(step(&mut law), (Reason::Hold, 30));
    assert_eq!(step(&mut law), (Reason::Hold, 30));
    assert_eq!(step(&mut law), (Reason::ProbeUndone, 40));
    // One window is skipped, nine more pass before the next probe may start.
    for _ in 0..10 {
        assert_eq!(step(&mut law), (Reason::Hold, 40));
    }
    assert_eq!(step(&mut law), (Reason::Probe, 30));
}

#[test]
fn changes_are_told_in_words() {
    let settings = LawSettings::Aimd(AimdSettings::default());
    let mut controller = Controller::new(settings, Some(WINDOW), at(0));
    let sample = Sample {
        latency: millis(120.0),
        in_flight: 20,
        dropped: false,
    };
    for _ in 0..9 {
        assert_eq!(controller.finished(sample, at(1)), None);
    }
    let change = controller.finished(sample, at(2)).unwrap();
    assert_eq!(
        change.to_string(),
        "limit 20 to 21: grow (mean latency 0.120 s, 5.0 done per second, 0 dropped, at most 20 \
         in flight)"
    );
    assert_eq!(controller.last_change(), Some(&change));
    let mut fixed = Controller::new(LawSettings::Fixed(7), Some(WINDOW), at(0));
    assert_eq!(fixed.finished(sample, at(9)), None);
    assert_eq!(fixed.limit(), 7);
}
