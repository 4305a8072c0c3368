use super::*;
use crate::algorithm::concurrency::cases::{case, close, number, numbers};

/// A clock in seconds.
fn at(seconds: f64) -> Timestamp {
    Timestamp::ZERO + Span::from_secs_f64(seconds)
}

/// Everything that happens on a path of leases (start, end): changes in order of time.
fn changes(leases: &[(f64, f64)], until: f64) -> Vec<(f64, Change)> {
    let mut changes: Vec<(f64, Change)> = Vec::new();
    for &(start, end) in leases {
        changes.push((start, Change::Start));
        changes.push((end, Change::End(end - start)));
    }
    changes.retain(|(time, _)| *time <= until);
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    changes
}

#[derive(Clone, Copy)]
enum Change {
    Start,
    End(f64),
}

struct Path {
    flow: Flow,
    audit: Audit,
    live: u64,
    sum: f64,
    ended: u32,
}

fn walk(leases: &[(f64, f64)], tau: f64, until: f64) -> Path {
    let mut path = Path {
        flow: Flow::new(Span::from_secs_f64(tau), at(0.0)),
        audit: Audit::new(at(0.0)),
        live: 0,
        sum: 0.0,
        ended: 0,
    };
    for (time, change) in changes(leases, until) {
        path.flow.advance(path.live, at(time));
        path.audit.advance(path.live, at(time));
        match change {
            Change::Start => {
                path.live += 1;
                path.flow.arrive(1);
            }
            Change::End(hold) => {
                path.live -= 1;
                path.flow.complete(1);
                path.audit.complete(1, Span::from_secs_f64(hold));
                path.sum += hold;
                path.ended += 1;
            }
        }
    }
    path.flow.advance(path.live, at(until));
    path.audit.advance(path.live, at(until));
    path
}

const FOR_EVER: f64 = 1e9;

fn path_of_the_cases() -> Vec<(f64, f64)> {
    let little = case("little");
    little["path"]["leases"]
        .as_array()
        .unwrap()
        .iter()
        .map(numbers)
        .map(|l| (l[0], l[1]))
        .collect()
}

#[test]
fn the_law_holds_on_the_path_of_the_cases() {
    let path = &case("little")["path"];
    let (leases, until) = (path_of_the_cases(), number(path, "T"));
    let end = walk(&leases, FOR_EVER, until);
    close(end.flow.arrival_rate(), number(path, "lam"), 1e-6);
    close(end.flow.mean_hold(1.0).unwrap(), number(path, "W"), 1e-6);
    close(end.flow.mean_in_flight(), number(path, "L_time_avg"), 1e-6);
    let law = end.flow.arrival_rate() * end.flow.mean_hold(1.0).unwrap();
    close(law, number(path, "lamW"), 1e-6);
}

#[test]
fn the_identity_holds_at_every_point_of_the_path() {
    let leases = path_of_the_cases();
    // t, A, completed, live, mean of completed, A/completions, Σ completed + Σ ages
    let table = [
        (0.3, 0.55, 1, 2, 0.25, 0.55, 0.55),
        (0.4, 0.70, 2, 1, 0.25, 0.35, 0.70),
        (0.6, 1.00, 2, 2, 0.25, 0.50, 1.00),
        (0.8, 1.25, 4, 0, 0.3125, 0.3125, 1.25),
        (1.5, 1.85, 4, 1, 0.3125, 0.4625, 1.85),
        (2.0, 2.25, 5, 0, 0.45, 0.45, 2.25),
    ];
    for (time, area, ended, live, mean, exposure, known) in table {
        let path = walk(&leases, FOR_EVER, time);
        close(path.audit.area_seconds(), area, 1e-6);
        assert_eq!((path.ended, path.live), (ended, live), "t = {time}");
        close(path.sum / f64::from(path.ended), mean, 1e-9);
        close(path.flow.mean_hold(1.0).unwrap(), exposure, 1e-6);
        let ages: Vec<_> = leases
            .iter()
            .filter(|(start, end)| (*start..*end).contains(&time))
            .map(|(start, _)| (1, at(time).since(at(*start))))
            .collect();
        close(
            path.sum + ages.iter().map(|(_, age)| age.as_secs_f64()).sum::<f64>(),
            known,
            1e-9,
        );
        assert_eq!(path.audit.error(ages.into_iter()), 0);
    }
}

#[test]
fn a_lost_lease_shows_in_the_identity() {
    let mut audit = Audit::new(at(0.0));
    audit.advance(2, at(1.0));
    assert_eq!(
        audit.error([(1, Span::from_secs(1))].into_iter()),
        1_000_000_000
    );
    let thrice = [(3, Span::from_secs(1))];
    assert_eq!(audit.error(thrice.into_iter()), -1_000_000_000);
}

#[test]
fn mean_in_flight_forgets() {
    let leases = path_of_the_cases();
    close(
        walk(&leases, 1.0, 2.0).flow.mean_in_flight(),
        0.952_385,
        1e-6,
    );
    close(
        walk(&leases, 10.0, 2.0).flow.mean_in_flight(),
        1.106_038,
        1e-6,
    );
    close(
        walk(&leases, FOR_EVER, 2.0).flow.mean_in_flight(),
        1.125,
        1e-6,
    );
}

/// Thirty permits always busy; holds that start from t = 10 s on last 5 s instead of 0.25 s.
#[test]
fn exposure_sees_a_slow_down_before_the_first_slow_lease_ends() {
    let mut leases = Vec::new();
    for i in 0..30 {
        let (mut start, mut end) = (0.0, 0.25 * f64::from(i + 1) / 30.0);
        while start <= 16.0 {
            leases.push((start, end));
            start = end;
            end = start + if start < 10.0 { 0.25 } else { 5.0 };
        }
    }
    // t, mean of finished holds (starting at 0.25), exposure ÷ completions with τ = 2 s
    let table = [
        (9.99, 0.25, 0.25),
        (10.5, 0.25, 0.284),
        (11.0, 0.25, 0.365),
        (12.0, 0.25, 0.603),
        (14.0, 0.25, 1.642),
        (15.2, 4.982, 1.368),
        (16.0, 4.994, 1.830),
    ];
    for (time, finished, exposure) in table {
        let mut mean = HoldMean::new(0.25, 0.2);
        // The first lease of each permit is shorter than a hold; the table starts at its mean.
        for (_, change) in changes(&leases, time) {
            if let Change::End(hold) = change
                && hold >= 0.25 - 1e-9
            {
                mean.feed(hold);
            }
        }
        close(mean.mean(), finished, 6e-4);
        let path = walk(&leases, 2.0, time);
        close(path.flow.mean_hold(1.0).unwrap(), exposure, 6e-4);
    }
}

#[test]
fn nothing_ended_for_long_is_a_bound_and_no_nonsense() {
    let mut flow = Flow::new(Span::from_secs(2), at(0.0));
    assert_eq!(flow.mean_hold(1.0), None);
    flow.complete(1);
    flow.advance(1, at(600.0));
    close(flow.mean_hold(1.0).unwrap(), 2.0, 1e-6);
    // Back in time: nothing happens.
    flow.advance(1_000, at(10.0));
    close(flow.mean_hold(1.0).unwrap(), 2.0, 1e-6);
}

#[test]
fn finished_holds_as_in_the_cases() {
    let case = &case("little")["occupancy_ewma"];
    let mut mean = HoldMean::new(number(case, "start"), 1.0 / (2.0 * number(case, "limit")));
    let samples = numbers(&case["samples"]);
    for (sample, expected) in samples.into_iter().zip(numbers(&case["avg"])) {
        // That source floors a sample at 0.1 s.
        mean.feed(sample.max(0.1));
        close(mean.mean(), expected, 1e-6);
    }
}
