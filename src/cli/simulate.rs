//! `porteiro simulate`: an experiment file, tried out in virtual time.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{ArgMatches, Args, Command, FromArgMatches as _};

use super::EXIT_USAGE;
use crate::{chart::svg, config::Severity, simulate::experiment};

/// The chart cannot be written (`EX_IOERR` of sysexits).
const EXIT_IO: u8 = 74;

/// An accepted number is missed.
const EXIT_MISSED: u8 = 1;

const HELP: &str = "\
An experiment file (YAML), tried out in virtual time by the algorithms that serve real requests.
Experiments that ship are in deploy/experiments/; its README.md says what each shows.

Requests against several limits:
  kind: limits
  title: Two bursts
  arrivals:
    - burst: {count: 40, at: 100ms, over: 100ms}    # evenly over a time
    - uniform: {rate: 10/s, from: 1s, until: 5s}    # evenly, without an end of its own
    - poisson: {rate: 10/s, from: 1s, until: 5s}    # at random; the same for the same `seed: N`
    - csv: {file: arrivals.csv}                     # columns time (seconds or dates) and cost
  limits:                                           # as `limits:` of a rule
    - {name: window, rate: 10/s}
    - {name: bucket, rate: 10/s, algorithm: token_bucket, burst: 20}
  window: 1s       # admissions are counted in every window of this length [longest period]
  start: 2024-01-01T00:00:00Z                       # what the clock says when it begins
  bar: 20ms                                         # width of a bar of the chart
  expect:                                           # of each limit, by its name
    bucket: {admitted: 25, most: at most 30}

Scenarios of work in flight and of clients that come back, each case tried with several seeds:
  kind: gate       # or adaptive, classes, collapse, hints, leaks, … : see deploy/experiments/
  runs: 4          # seeds for each case
  quick: 1         # the same with --quick
  cases:
    - name: 200/s, 250 ms
      offered: 200/s
      hold: 250ms
      expect: {admitted: 115 ± 1.5}                 # of the mean
      expect_each: {peak: at most 30}               # of every try
Expectations: 60, 115 ± 1.5, 32 to 34 %, at least 98, at most 250 ms, never,
at least 1.2 × NAME OF A CASE, or a list of these.

Exit codes: 0; 1 an expectation is missed; 64 wrong flags or a wrong file; 74 the chart cannot be
written.";

// The flags. As a doc comment this would be the help of the subcommand.
#[derive(Debug, Args)]
struct Flags {
    /// The experiment
    #[arg(value_name = "EXPERIMENT.yaml")]
    experiment: PathBuf,

    /// Write a chart to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Try only what a first look needs: fewer seeds, fewer cases
    #[arg(long)]
    quick: bool,
}

/// The subcommand.
pub fn command() -> Command {
    Flags::augment_args(
        Command::new("simulate")
            .about("Try out limits on made-up requests, in virtual time")
            .after_help(HELP),
    )
}

/// Runs it.
pub fn run(matches: &ArgMatches) -> ExitCode {
    match Flags::from_arg_matches(matches)
        .map_err(|error| (EXIT_USAGE, error.to_string()))
        .and_then(|flags| simulate(&flags))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            // Standard error may be closed; the exit code still tells.
            let _ = writeln!(io::stderr(), "{message}");
            ExitCode::from(code)
        }
    }
}

fn simulate(flags: &Flags) -> Result<(), (u8, String)> {
    let (experiment, findings) = experiment::load(&flags.experiment);
    for finding in &findings {
        let _ = writeln!(io::stderr(), "{finding}");
    }
    let errors = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error);
    let Some(mut experiment) = experiment.filter(|_| errors.count() == 0) else {
        let path = flags.experiment.display();
        return Err((
            EXIT_USAGE,
            format!("porteiro simulate: {path}: no experiment"),
        ));
    };
    if flags.quick {
        experiment.shorten();
    }
    let report = experiment.run();
    // Whoever closed standard output did not want to read it.
    let _ = write!(io::stdout().lock(), "{report}");
    if let Some(path) = &flags.svg {
        let failed = |what: String| {
            (
                EXIT_IO,
                format!("porteiro simulate: {}: {what}", path.display()),
            )
        };
        let svg = svg::draw(&report.figure).map_err(|error| failed(error.to_string()))?;
        fs::write(path, svg).map_err(|error| failed(error.to_string()))?;
    }
    if let Some(failure) = report.failures.first() {
        let path = flags.experiment.display();
        return Err((EXIT_MISSED, format!("porteiro simulate: {path}: {failure}")));
    }
    Ok(())
}
