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

const HELP: &str = "\
An experiment file (YAML): requests against several limits, in virtual time, by the algorithms that
serve real requests. For example:
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

Exit codes: 0; 64 wrong flags or a wrong file; 74 the chart cannot be written.";

// The flags. As a doc comment this would be the help of the subcommand.
#[derive(Debug, Args)]
struct Flags {
    /// The experiment
    #[arg(value_name = "EXPERIMENT.yaml")]
    experiment: PathBuf,

    /// Write a chart to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
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
    let Some(experiment) = experiment.filter(|_| errors.count() == 0) else {
        let path = flags.experiment.display();
        return Err((
            EXIT_USAGE,
            format!("porteiro simulate: {path}: no experiment"),
        ));
    };
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
    Ok(())
}
