//! The figures of our experiments beside those of another simulator, `tests/cases/simulations.json`.
//!
//! That file has one run of each scenario with one seed (S1 the mean of four, S3 of three, S6 of
//! twenty), ours are means. A single run scatters: the tolerance of a figure is about the width of
//! the range that it takes over other seeds. The experiments' own expectations are narrower.

use porteiro::simulate::report::Report;
use serde_json::Value;

/// A table of the file, the experiment that tries the same, and which figures are the same.
struct Section {
    json: &'static str,
    experiment: &'static str,
    /// Our case for each entry; none: nothing of ours is like it.
    cases: &'static [Option<&'static str>],
    /// Where the figure is in an entry, our column, what one of theirs is in ours, and how far
    /// they may be apart in ours.
    figures: &'static [(&'static str, &'static str, f64, f64)],
}

/// What is given and not found, and names.
const GIVEN: [&str; 20] = [
    "/offered",
    "/S",
    "/C",
    "/policy",
    "/mode",
    "/name",
    "/order",
    "/algo",
    "/p",
    "/ttl",
    "/session",
    "/tick",
    "/lam",
    // Formulas: held against Erlang in `sizing` and in the experiments' expectations.
    "/S1_gate/erlang",
    "/S1_gate/ceiling",
    // Follows from other figures: total less loud, ok times offered.
    "/small_rps",
    "/rps/0",
    "/rps/1",
    "/rps/2",
    // The number of those who waited grows with the length of a run only.
    "/n",
];

/// What we do not measure.
const NOT_COMPARED: [&str; 5] = [
    // The first ten seconds of a leak, and the second it dies in: that depends on the seed; ours
    // expects that it dies.
    "/rps_0_10",
    "/zero_at",
    // The second class' wait lies between those of the first and the third.
    "/p99_wait_ms/1",
    // Means over all, those included who did not wait.
    "/mean_wait_ms",
    // Over a time that is not said.
    "/util_during",
];

const SECTIONS: &[Section] = &[
    Section {
        json: "S1_gate",
        experiment: "s1-gate",
        cases: &[
            Some("60/s for 250 ms"),
            Some("100/s for 250 ms"),
            Some("120/s for 250 ms"),
            Some("200/s for 250 ms"),
            Some("500/s for 250 ms"),
            Some("1000/s for 250 ms"),
            Some("200/s for 500 ms"),
            Some("500/s for 500 ms"),
        ],
        figures: &[("/sim_exp", "admitted", 1.0, 1.5)],
    },
    Section {
        json: "S1_gate",
        experiment: "s1-gate",
        cases: &[
            Some("60/s for exactly 250 ms"),
            Some("100/s for exactly 250 ms"),
            Some("120/s for exactly 250 ms"),
            Some("200/s for exactly 250 ms"),
            Some("500/s for exactly 250 ms"),
            Some("1000/s for exactly 250 ms"),
            Some("200/s for exactly 500 ms"),
            Some("500/s for exactly 500 ms"),
        ],
        figures: &[("/sim_det", "admitted", 1.0, 1.0)],
    },
    Section {
        json: "S3_collapse",
        experiment: "s3-collapse",
        cases: &[
            Some("queue without an end"),
            Some("and retries on timeout"),
            Some("cure: a deadline"),
            Some("newest first"),
            Some("newest first and a deadline"),
            Some("refuse at 25"),
            Some("cure: refuse at 30"),
            Some("refuse at 25 and retries"),
            Some("cure: a short queue (75)"),
            Some("a queue of 175"),
            Some("a queue that is too long (200)"),
        ],
        figures: &[
            ("/good_0_10", "good early", 1.0, 7.0),
            ("/good_20_60", "good late", 1.0, 1.3),
            ("/recovery_s", "recovery", 1.0, 9.0),
            ("/p99_ok", "p99", 1.0, 0.1),
            ("/wasted", "wasted", 1.0, 0.03),
            ("/attempts", "attempts", 1.0, 0.03),
        ],
    },
    Section {
        json: "S3b_slowdown",
        experiment: "s3b-slow-service",
        cases: &[Some("rate limit of 95/s"), Some("25 in flight")],
        figures: &[
            ("/adm_normal", "admitted normal", 1.0, 1.6),
            ("/adm_slow", "admitted slow", 1.0, 0.5),
            ("/good_normal", "good normal", 1.0, 1.6),
            ("/good_slow", "good slow", 1.0, 0.2),
            ("/good_after", "good after", 1.0, 0.9),
        ],
    },
    Section {
        json: "S4_noisy",
        experiment: "s4-neighbours",
        cases: &[
            Some("first come first served"),
            Some("3 for everybody"),
            Some("1 for everybody"),
            Some("loud one leaves 3"),
            Some("loud one leaves 5"),
            Some("loud one leaves 8"),
            Some("15 for the loud one"),
            Some("11 for the loud one"),
            Some("8 for the loud one"),
            Some("small ones wait 20 ms"),
            Some("small ones wait 50 ms"),
            Some("small ones wait 100 ms"),
            Some("everybody waits 100 ms"),
        ],
        figures: &[
            ("/small_ok", "small ok", 1.0, 0.015),
            ("/worst_small", "worst ok", 1.0, 0.04),
            ("/noisy_rps", "loud", 1.0, 2.5),
            ("/total", "total", 1.0, 2.0),
            ("/util", "in use", 1.0, 0.02),
            ("/wait_p50_ms", "wait p50", 1e-3, 2e-3),
            ("/wait_p99_ms", "wait p99", 1e-3, 8e-3),
        ],
    },
    Section {
        json: "S5_leaks",
        experiment: "s5-leaks",
        cases: &[
            Some("1 % for ever"),
            Some("1 %, TTL 60 s"),
            Some("1 %, TTL 10 s"),
            Some("1 %, TTL 2 s"),
            Some("0.1 %, TTL 60 s"),
            Some("0.1 %, TTL 10 s"),
            Some("1 %, session noticed in 50 ms"),
            Some("1 %, session noticed in 1 s"),
            Some("1 %, TTL 2 s, swept each second"),
            Some("1 %, TTL 2 s, swept each 100 ms"),
        ],
        figures: &[
            ("/rps_60_T", "admitted", 1.0, 3.0),
            ("/erlang", "erlang", 1.0, 0.1),
            ("/ceiling", "ceiling", 1.0, 0.1),
        ],
    },
    Section {
        json: "S6_stacked",
        experiment: "s6-stacked",
        cases: &[Some("one after the other"), Some("one decision")],
        figures: &[
            ("/ok", "ok", 1.0, 1.5),
            ("/used", "quota used", 1.0, 0.0),
            ("/burned", "burned", 1.0, 1.5),
            ("/refused_conc", "refused concurrency", 1.0, 20.0),
            ("/refused_rate", "refused rate", 1.0, 20.0),
            ("/last_ok_s", "last ok", 1.0, 1.0),
        ],
    },
    Section {
        json: "S7_tiers",
        experiment: "s7-classes",
        cases: &[
            Some("all alike"),
            Some("thresholds 1 / 0.8 / 0.6"),
            Some("thresholds 1 / 0.9 / 0.7"),
            Some("wait of 100 ms"),
            Some("wait of 30 ms"),
        ],
        figures: &[
            ("/ok/0", "first ok", 1.0, 0.01),
            ("/ok/1", "second ok", 1.0, 0.013),
            ("/ok/2", "third ok", 1.0, 0.012),
            ("/total", "total", 1.0, 1.5),
            ("/p99_wait_ms/0", "first wait p99", 1e-3, 5e-3),
            ("/p99_wait_ms/2", "third wait p99", 1e-3, 5e-3),
        ],
    },
    Section {
        json: "S8_adaptive",
        experiment: "s8-adaptive",
        // The default of ours, the knee guard, is not in the file.
        cases: &[
            Some("fixed 25"),
            None,
            Some("fixed 200"),
            Some("AIMD"),
            Some("Vegas"),
            None,
            Some("Gradient2"),
            Some("Envoy's, known baseline"),
            Some("Envoy's, measured baseline"),
            Some("target 350 ms, no guard"),
            Some("target 350 ms, floor"),
            None,
        ],
        figures: &[
            ("/good/0", "good before", 1.0, 8.0),
            ("/good/1", "good slow", 1.0, 8.0),
            ("/good/2", "good after", 1.0, 8.0),
            ("/limit/0", "limit before", 1.0, 4.0),
            ("/limit/1", "limit slow", 1.0, 6.0),
            ("/limit/2", "limit after", 1.0, 6.0),
            ("/mean_ms/0", "latency before", 1e-3, 0.03),
            ("/mean_ms/1", "latency slow", 1e-3, 0.06),
            ("/mean_ms/2", "latency after", 1e-3, 0.05),
        ],
    },
    Section {
        json: "S9_hints",
        experiment: "s9-hints",
        cases: &[
            Some("after 1 s"),
            Some("after 100 ms"),
            Some("full jitter"),
            Some("equal jitter"),
            Some("the hint, hold known"),
            Some("number of those away"),
        ],
        figures: &[
            ("/attempts_per_req", "attempts", 1.0, 1.1),
            ("/failed", "failed", 1.0, 40.0),
            ("/p99_wait_s", "wait p99", 1.0, 1.7),
            ("/burst_drained_s", "drained", 1.0, 3.3),
        ],
    },
    // A queue at 98 and 95 % of what can be served: the mean wait of a run is off by a quarter of
    // itself now and then.
    Section {
        json: "S9b_hint_accuracy",
        experiment: "s9b-accuracy",
        cases: &[
            Some("110/s on 30 permits of 250 ms"),
            Some("118/s on 30 permits of 250 ms"),
            None,
        ],
        figures: &[
            ("/mean_pred_ms", "told", 1e-3, 0.18),
            ("/mean_actual_ms", "real", 1e-3, 0.18),
            ("/mean_abs_err_ms", "error", 1e-3, 0.01),
            ("/corr", "correlation", 1.0, 0.015),
        ],
    },
    Section {
        json: "S9b_hint_accuracy",
        experiment: "s9b-accuracy",
        cases: &[None, None, Some("9.5/s on 10 permits of 1 s")],
        figures: &[
            ("/mean_pred_ms", "told", 1e-3, 0.6),
            ("/mean_actual_ms", "real", 1e-3, 0.6),
            ("/mean_abs_err_ms", "error", 1e-3, 0.06),
            ("/corr", "correlation", 1.0, 0.015),
        ],
    },
    Section {
        json: "S10_restart",
        experiment: "s10-restart",
        cases: &[
            Some("forget"),
            Some("quarantine"),
            Some("reattach"),
            Some("snapshot"),
        ],
        figures: &[
            ("/peak_inflight_after", "peak", 1.0, 5.0),
            ("/refused_after", "refused", 1.0, 45.0),
            ("/admitted_30s_after", "admitted", 1.0, 25.0),
        ],
    },
    Section {
        json: "S11_heavy",
        experiment: "s11-heavy",
        cases: &[
            Some("refused"),
            Some("heavy ones may wait"),
            Some("their place is kept"),
        ],
        figures: &[
            ("/light_ok", "light ok", 1.0, 0.012),
            ("/heavy_ok", "heavy ok", 1.0, 0.03),
            ("/heavy_p99_wait_ms", "heavy wait p99", 1e-3, 0.03),
        ],
    },
];

fn reference() -> Value {
    let text = std::fs::read_to_string("tests/cases/simulations.json").unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Holds what a report has of each entry of the file against it.
#[track_caller]
pub(crate) fn compare(experiment: &str, report: &Report) {
    let reference = reference();
    let table = &report.tables[0];
    let names = table.column("case");
    let sections = SECTIONS.iter();
    let mut off = Vec::new();
    for section in sections.filter(|section| section.experiment == experiment) {
        for (entry, case) in section.cases.iter().enumerate() {
            // A quick look leaves some out.
            let Some(row) = case.and_then(|case| names.iter().position(|name| *name == case))
            else {
                continue;
            };
            for (pointer, column, one, tolerance) in section.figures {
                let entry = &reference[section.json][entry];
                let Some(theirs) = entry.pointer(pointer).and_then(Value::as_f64) else {
                    continue;
                };
                let Some(ours) = number(table.column(column)[row]) else {
                    // What they write when it never happens.
                    assert!((theirs - 999.0).abs() < 1e-9, "{case:?}: no {column}");
                    continue;
                };
                let theirs = theirs * one;
                if (ours - theirs).abs() > tolerance + 1e-9 {
                    off.push(format!("{case:?}: {column} is {ours}, theirs {theirs}"));
                }
            }
        }
    }
    assert!(off.is_empty(), "{off:#?}");
}

/// A cell as a number; shares as such, times in seconds.
fn number(cell: &str) -> Option<f64> {
    let units = [("%", 1e-2), ("ms", 1e-3), ("µs", 1e-6), ("s", 1.0)];
    let unit = units.iter().find(|(unit, _)| cell.ends_with(unit));
    let (unit, one) = unit.copied().unwrap_or(("", 1.0));
    let number: f64 = cell.strip_suffix(unit)?.parse().ok()?;
    Some(number * one)
}

#[test]
fn every_figure_of_the_file_is_compared_or_said_not_to_be() {
    let reference = reference();
    let (mut compared, mut left) = (0, Vec::new());
    for (json, entries) in reference.as_object().unwrap() {
        let sections: Vec<&Section> = SECTIONS.iter().filter(|one| one.json == json).collect();
        assert!(!sections.is_empty(), "{json} is not compared");
        for (index, entry) in entries.as_array().unwrap().iter().enumerate() {
            for section in &sections {
                assert!(index < section.cases.len(), "{json} has more entries");
            }
            for pointer in leaves(entry) {
                let figures = sections.iter().flat_map(|section| section.figures);
                let known = figures.into_iter().any(|figure| figure.0 == pointer);
                let full = format!("/{json}{pointer}");
                if known {
                    compared += 1;
                } else if !GIVEN.contains(&&*pointer)
                    && !GIVEN.contains(&&*full)
                    && !NOT_COMPARED.contains(&&*pointer)
                {
                    left.push(full);
                }
            }
        }
    }
    assert!(left.is_empty(), "{left:?}");
    assert!(compared > 300, "{compared}");
}

/// Where the scalars of an entry are.
fn leaves(entry: &Value) -> Vec<String> {
    let mut leaves = Vec::new();
    for (name, value) in entry.as_object().unwrap() {
        match value.as_array() {
            Some(items) => {
                leaves.extend((0..items.len()).map(|index| format!("/{name}/{index}")));
            }
            None => leaves.push(format!("/{name}")),
        }
    }
    leaves
}
