//! `porteiro simulate`: the experiments that ship, their numbers and charts, and wrong files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use porteiro::{
    chart::{figure::Figure, svg},
    simulate::{experiment, report::Report},
};

const BURST: &str = "deploy/experiments/burst.yaml";

/// Runs an experiment file that must be fine.
fn run(path: &Path) -> Report {
    let (experiment, findings) = experiment::load(path);
    assert!(findings.is_empty(), "{findings:?}");
    experiment.unwrap().run()
}

/// Runs an experiment from a text, in a folder of its own.
fn run_text(text: &str) -> Result<Report, Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    fs::write(&path, text).unwrap();
    fs::write(
        folder.path().join("arrivals.csv"),
        "time,cost\n0.5,2\n0.25,\n1,3\n",
    )
    .unwrap();
    fs::write(folder.path().join("bad.csv"), "time,cost\n0.5,2\nx,1\n").unwrap();
    let dated = "time\n2024-05-01T12:00:30Z\n2024-05-01T12:00:59Z\n2024-05-01T12:01:00Z\n";
    fs::write(folder.path().join("dated.csv"), dated).unwrap();
    let (experiment, findings) = experiment::load(&path);
    let shown = findings.iter().map(|finding| {
        let shown = finding.to_string();
        shown.rsplit_once("e.yaml:").unwrap().1.to_owned()
    });
    experiment
        .map(|experiment| experiment.run())
        .ok_or(shown.collect())
}

fn column(report: &Report, head: &str) -> Vec<String> {
    let cells = report.tables[0].column(head).into_iter();
    cells.map(str::to_owned).collect()
}

/// All texts of a chart, which must be well-formed XML.
fn texts(figure: &Figure) -> Vec<String> {
    let svg = svg::draw(figure).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| node.text().unwrap_or_default().trim().to_owned())
        .collect()
}

#[test]
fn the_burst_experiment_shows_20_10_11_19_and_10() {
    let report = run(Path::new(BURST));
    assert_eq!(
        column(&report, "most in 1s"),
        ["20", "10", "11", "19", "10"]
    );
    assert_eq!(column(&report, "offered"), ["80"; 5]);
    assert_eq!(column(&report, "admitted"), ["20", "10", "11", "19", "19"]);
    assert_eq!(column(&report, "refused"), ["60", "70", "69", "61", "61"]);
    // The first burst has the slots from 0.1 s to 1 s; of the second, the ninth to join comes at
    // 1.02 s and leaves at 1.9 s.
    assert_eq!(column(&report, "wait max")[4], "880ms");
    assert_eq!(column(&report, "never"), ["0"; 5]);
}

#[test]
fn the_chart_of_the_burst_experiment_says_the_numbers() {
    let report = run(Path::new(BURST));
    let texts = texts(&report.figure);
    for wanted in [
        "20 in 1s",
        "10 in 1s",
        "11 in 1s",
        "19 in 1s",
        "fixed window",
        "waiting in leaky bucket as a queue",
        "seconds since the start",
        "requests / 20ms",
    ] {
        assert!(
            texts.iter().any(|text| text == wanted),
            "{wanted} is not in {texts:?}"
        );
    }
    assert_eq!(texts.iter().filter(|text| *text == "10 in 1s").count(), 2);
}

/// Experiments that ship, by name.
fn shipped() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir("deploy/experiments").unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
    let named = files.map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, path)
    });
    named.collect()
}

#[test]
fn the_readme_of_the_experiments_names_each_of_them() {
    let readme = fs::read_to_string("deploy/experiments/README.md").unwrap();
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut listed: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let shipped = shipped();
    let mut shipped: Vec<&str> = shipped.iter().map(|(name, _)| &**name).collect();
    listed.sort_unstable();
    shipped.sort_unstable();
    assert_eq!(listed, shipped);
}

#[test]
fn the_program_prints_the_table_and_writes_the_chart() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("burst.svg");
    let output = Command::new(env!("CARGO_BIN_EXE_porteiro"))
        .args(["simulate", BURST, "--svg"])
        .arg(&chart)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report = run(Path::new(BURST));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        report.to_string()
    );
    assert_eq!(
        fs::read_to_string(chart).unwrap(),
        svg::draw(&report.figure).unwrap()
    );
    let missing = Command::new(env!("CARGO_BIN_EXE_porteiro"))
        .args(["simulate", "deploy/experiments/none.yaml"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(64));
}

#[test]
fn arrivals_come_from_a_table() {
    let text = "\
kind: limits
arrivals: [csv: {file: arrivals.csv}]
limits: [{rate: 4/s}, {rate: 2/minute, algorithm: sliding_log}]
window: 750ms
";
    let report = run_text(text).unwrap();
    assert_eq!(column(&report, "offered"), ["3", "3"]);
    // Costs 1, 2 and 3: at 1 s a new window has begun.
    assert_eq!(column(&report, "admitted"), ["3", "1"]);
    assert_eq!(column(&report, "most in 750ms"), ["5", "1"]);
    // Two are refused: one may come back after the first has left, three will never fit.
    assert_eq!(column(&report, "never"), ["0", "1"]);
    assert!(
        report.notes[0].starts_with("3 requests, 6 units between 250ms and 1s"),
        "{report}"
    );
}

#[test]
fn dates_begin_with_their_minute() {
    let text = "\
kind: limits
arrivals: [csv: {file: dated.csv}]
limits: [{rate: 1/minute}]
";
    let report = run_text(text).unwrap();
    assert_eq!(column(&report, "admitted"), ["2"]);
    assert!(
        report.notes[0].starts_with("3 requests between 30s and 60s"),
        "{report}"
    );
    let late = format!("{text}start: 2024-05-01T12:00:31Z\n");
    let findings = run_text(&late).unwrap_err();
    assert_eq!(
        findings,
        ["1:1: error: there are requests before the start; set `start:` earlier"]
    );
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_one_another() {
    let text = |seed| {
        format!(
            "kind: limits\nseed: {seed}\narrivals: [poisson: {{rate: 20/s, until: 10s}}]\n\
             limits: [{{rate: 10/s, algorithm: token_bucket, burst: 5}}]\n"
        )
    };
    let report = |seed| run_text(&text(seed)).unwrap();
    assert_eq!(report(1), report(1));
    assert_ne!(report(1).tables, report(2).tables);
}

#[test]
fn mistakes_are_told_with_their_place() {
    let findings = run_text(
        "\
kind: limits
arivals: []
arrivals:
  - burst: {at: 1s, over: 0.1s}
  - uniform: {rate: 10/s, until: 1s, from: 2s}
  - poisson: {rate: 10}
  - csv: {file: none.csv}
  - csv: {file: bad.csv}
  - {}
limits:
  - {rate: 10/s, algoritm: token_bucket}
  - {rate: 10/s, burst: 5}
window: 0s
",
    )
    .unwrap_err();
    let wanted = [
        "2:10: error: arivals: unknown field \"arivals\"; did you mean `arrivals`?",
        "4:27: error: arrivals[0].burst.over: \".\" is no unit of time; write a number with a \
         unit, such as 500ms, 10s, 15m, 1h30m, 5d",
        "4:12: error: arrivals[0].burst: `count` is missing; say how many come",
        "5:14: error: arrivals[1].uniform: it ends before it begins; make `until` later than \
         `from`",
        "6:21: error: arrivals[2].poisson.rate: \"10\" is no rate; write a whole number and a \
         period, such as 5/s, 600/minute, 20/10s, 3/5d, 50000/month",
        "6:14: error: arrivals[2].poisson: `rate` and `until` are needed; say how many come, and \
         how long",
        "7:17: error: arrivals[3].csv: none.csv: No such file or directory (os error 2)",
        "8:17: error: arrivals[4].csv: bad.csv: line 3: time: \"x\" is no time; write \
         2024-05-01T12:00:00.5Z, or seconds since 1970 such as 1714564800.5",
        "9:5: error: arrivals[5]: the pattern is missing; add burst, uniform, poisson or csv",
        "11:28: error: limits[0].algoritm: unknown field \"algoritm\"; did you mean `algorithm`?",
        "12:25: error: limits[1].burst: only token_bucket, leaky_bucket or leaky_queue has this; \
         remove it, or change the algorithm",
        "13:9: error: window: no time at all; write a longer one",
    ];
    assert_eq!(findings, wanted);
    let kind = run_text("kind: limit\n").unwrap_err();
    assert_eq!(
        kind,
        ["1:7: error: kind: \"limit\" is not known here; did you mean `limits`?"]
    );
    let none = run_text("title: x\n").unwrap_err();
    let start =
        "1:1: error: the kind of the experiment is missing; add `kind:` with one of limits,";
    assert!(none[0].starts_with(start), "{none:?}");
    assert_eq!(run_text("").unwrap_err().len(), 1);
    assert_eq!(run_text("kind: [limits\n").unwrap_err().len(), 1);
}

#[test]
fn mistakes_in_cases_are_told_with_their_place() {
    let findings = run_text(
        "\
kind: gate
runs: 0
cases:
  - {name: a, offered: 0/s, hold: 1s, spread: constnt}
  - {name: a, step: {at: 3s}, expect: {admited: 3}}
  - {name: b, expect: {admitted: [5 to 4, at least 2 × c], peak: {}}}
  - {name: d, offered: 1000000/s}
  - {name: e, expect_each: {admitted: at most 1 × f}}
  - {name: f, quick: false}
",
    )
    .unwrap_err();
    let advice = "write 60, 115 ± 1.5, 32 to 34 %, at least 98, at most 250 ms, at least 1.2 × \
                  NAME OF A CASE or never";
    let wanted = [
        "2:7: error: runs: too few or too many; write 1 to 10000".to_owned(),
        "4:24: error: cases[0].offered: nobody comes; write a higher rate".to_owned(),
        "4:47: error: cases[0].spread: \"constnt\" is not known here; did you mean `constant`?"
            .to_owned(),
        "5:21: error: cases[1].step: `hold` is missing or zero; say how long each holds from then \
         on"
            .to_owned(),
        "5:49: error: cases[1].expect.admited: unknown field \"admited\"; did you mean `admitted`?"
            .to_owned(),
        "5:5: error: cases: there is a case \"a\" already; give each a name of its own"
            .to_owned(),
        format!("6:35: error: cases[2].expect.admitted[0]: this cannot be expected; {advice}"),
        "6:66: error: cases[2].expect.peak: a mapping is not a text; write a text".to_owned(),
        "7:5: error: cases[3]: more than 2000000 requests; let fewer come, or for less long"
            .to_owned(),
        "6:43: error: there is no case \"c\" to compare with; name one that is tried whenever this \
         one is"
            .to_owned(),
        "8:39: error: there is no case \"f\" to compare with; name one that is tried whenever this \
         one is"
            .to_owned(),
    ];
    assert_eq!(findings, wanted);
    let none = run_text("kind: gate\n").unwrap_err();
    let wanted = "1:1: error: there is nothing to try; add `cases:` with at least one";
    assert_eq!(none, [wanted]);
}

#[test]
fn a_missed_expectation_is_told_and_ends_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missed.yaml");
    let text = "\
kind: gate
runs: 2
cases:
  - {name: small, permits: 3, offered: 20/s, length: 20s, expect: {peak: 3, admitted: at least 30}}
  - {name: large, permits: 30, offered: 20/s, length: 20s, expect_each: {peak: at most 3}}
  - {name: none, offered: 20/s, length: 20s, expect: {peak: at most 0.5 × small, after_step: never}}
";
    fs::write(&path, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_porteiro"))
        .args(["simulate", "--quick"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("one try of each, seed 1"), "{report}");
    let missed = report.lines().filter(|line| line.ends_with("MISSED"));
    assert_eq!(missed.count(), 3, "{report}");
    let ok = report.lines().filter(|line| line.ends_with("  ok"));
    assert_eq!(ok.count(), 2, "{report}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("missed.yaml: small: admitted is "),
        "{error}"
    );
    assert_eq!(run(&path).failures.len(), 3);
}

#[test]
fn expectations_of_limits_name_the_limit() {
    let text = "\
kind: limits
arrivals: [burst: {count: 20, over: 1s}]
limits: [{name: a, rate: 10/s}, {rate: 5/s}]
expect: {a: {admitted: 10, wait_max: never}, fixed_window: {admitted: 6}}
";
    let report = run_text(text).unwrap();
    assert_eq!(
        report.failures,
        ["fixed_window: admitted is 5, accepted: 6"]
    );
    let findings = run_text(&text.replace("{a: {", "{b: {")).unwrap_err();
    assert!(
        findings[0].starts_with("4:13: error: expect.b: unknown field"),
        "{findings:?}"
    );
}
