//! The experiments that ship meet their own expectations, and their charts can be drawn.
//!
//! Without `PORTEIRO_LONG=1` each is tried as `porteiro simulate --quick` does; with it, with all
//! cases and seeds (minutes, unless built with `--profile fast`).

use std::path::Path;

use porteiro::{chart::svg, simulate::experiment};

use crate::simulations;

/// Tries an experiment, holds it against its expectations and draws it.
#[track_caller]
fn check(name: &str) {
    let path = Path::new("deploy/experiments").join(format!("{name}.yaml"));
    let (experiment, findings) = experiment::load(&path);
    assert!(findings.is_empty(), "{findings:?}");
    let mut experiment = experiment.unwrap();
    if std::env::var_os("PORTEIRO_LONG").is_none_or(|value| value != "1") {
        experiment.shorten();
    }
    let report = experiment.run();
    println!("{report}");
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
    // The second table is that of the expectations.
    assert!(report.tables.len() >= 2, "{name} expects nothing");
    simulations::compare(name, &report);
    let svg = svg::draw(&report.figure).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let mut texts = document.descendants().filter_map(|node| node.text());
    assert!(texts.any(|text| text.contains(&report.title)), "{name}");
}

/// One test for each experiment, so that they run side by side; and one that none is missing.
macro_rules! experiments {
    ($($test:ident: $name:literal,)+) => {
        $(
            #[test]
            fn $test() {
                check($name);
            }
        )+

        #[test]
        fn every_experiment_is_tried() {
            let tried = [$($name),+];
            for entry in std::fs::read_dir("deploy/experiments").unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|end| end == "yaml") {
                    let name = path.file_stem().unwrap().to_str().unwrap();
                    assert!(tried.contains(&name), "{name} is not tried");
                }
            }
        }
    };
}

experiments! {
    burst: "burst",
    steady: "steady",
    s1_gate: "s1-gate",
    s2_slow_down: "s2-slow-down",
    retry_storm: "retry-storm",
    synchronised_clients: "synchronised-clients",
    boundary_stampede: "boundary-stampede",
    s3_collapse: "s3-collapse",
    s3b_slow_service: "s3b-slow-service",
    s4_neighbours: "s4-neighbours",
    fair_shedding: "fair-shedding",
    s5_leaks: "s5-leaks",
    s6_stacked: "s6-stacked",
    s7_classes: "s7-classes",
    s8_adaptive: "s8-adaptive",
    s9_hints: "s9-hints",
    s9b_accuracy: "s9b-accuracy",
    s10_restart: "s10-restart",
    s11_heavy: "s11-heavy",
    s12_counters: "s12-counters",
}
