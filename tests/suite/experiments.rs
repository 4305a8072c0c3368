//! The experiments that ship meet their own expectations, and their charts can be drawn.
//!
//! Without `PORTEIRO_LONG=1` each is tried as `porteiro simulate --quick` does; with it, with all
//! cases and seeds (minutes, unless built with `--profile fast`).

use std::path::Path;

use porteiro::{
    chart::svg,
    simulate::{experiment, report::Report},
};

/// Tries an experiment, holds it against its expectations and draws it.
#[track_caller]
fn check(name: &str) -> Report {
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
    let svg = svg::draw(&report.figure).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let mut texts = document.descendants().filter_map(|node| node.text());
    assert!(texts.any(|text| text.contains(&report.title)), "{name}");
    report
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
}
