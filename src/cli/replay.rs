//! `porteiro replay`: an access log against rules, to see whom they would refuse.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
};

use clap::{ArgMatches, Args, Command, FromArgMatches as _};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::EXIT_USAGE;
use crate::{
    algorithm::Retry,
    config::{self, LoadOptions},
    model::notation,
    replay::{DEFAULT_ORDER, Replay, decision::Decision, report::Report, side::Side},
    rules::Rules,
    trace::{
        Format, Trace,
        mapping::{Mapping, MappingOptions},
        order::Order,
        record::Record,
        time,
    },
};

/// More was refused than `--fail-if-denied-over` allows.
const EXIT_DENIED: u8 = 1;
/// Not one line of the trace is a request (`EX_DATAERR` of sysexits).
const EXIT_NO_REQUESTS: u8 = 65;
/// The trace cannot be read (`EX_NOINPUT`).
const EXIT_NO_TRACE: u8 = 66;
/// `--refusals` cannot be written (`EX_IOERR`).
const EXIT_IO: u8 = 74;

const HELP: &str = "\
The trace: one request per line, each an object of JSON, or a row of a table (CSV) whose first line
names the columns. The time is RFC 3339 or a number since 1970 (seconds with decimals, or whole
milli-, micro- or nanoseconds). Descriptors are written user=a,path=/x;tenant=t, or in JSON also
{\"user\": \"a\"} or {\"entries\": [{\"key\": \"user\", \"value\": \"a\"}]}, alone or in a list.

An access log has no descriptors: say how its fields make them. For Envoy's:
  porteiro replay --config rules/ --domain edge access.log \\
    --descriptor 'remote_address={downstream_remote_address|ip}' \\
    --descriptor 'method={method},path={path|path}'
A line without one of the fields lacks that descriptor, as in Envoy. Filters: ip (without the port),
path (without the query), first and last (of a list with commas).

Exit codes: 0; 1 more was refused than --fail-if-denied-over allows; 64 wrong flags or rules;
65 not one line is a request; 66 the trace cannot be read; 74 --refusals cannot be written.";

// The flags. As a doc comment this would be the help of the subcommand.
#[derive(Debug, Args)]
struct Flags {
    /// Rules to decide by: a file or a directory; twice, to see what the second changes
    #[arg(long, value_name = "PATH", required = true)]
    config: Vec<PathBuf>,

    /// The trace; - for standard input
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// How the trace is written; told from its first byte if not given
    #[arg(long, value_name = "json|csv")]
    #[arg(value_parser = format)]
    format: Option<Format>,

    /// Domain of every request (default: the field `domain`, else the only domain of the rules)
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    /// Descriptors made of fields; repeat for more (default: the field `descriptors`)
    #[arg(long, value_name = "K={FIELD},…")]
    descriptor: Vec<String>,

    /// Field with the time (default: time, `start_time`, timestamp or @timestamp)
    #[arg(long, value_name = "FIELD")]
    time: Option<String>,

    /// Field with the cost of a request (default: cost; without one, 1)
    #[arg(long, value_name = "FIELD")]
    cost: Option<String>,

    /// How many lines a request may stand out of the order of time; 0 keeps the file's order
    #[arg(long, value_name = "LINES", default_value_t = DEFAULT_ORDER)]
    order: usize,

    /// How many of the most refused callers are listed
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Exit with 1 when the (new) rules refuse more than this share of the requests
    #[arg(long, value_name = "PERCENT%")]
    fail_if_denied_over: Option<Share>,

    /// Write every refusal under the (new) rules to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    refusals: Option<PathBuf>,
}

/// The subcommand.
pub fn command() -> Command {
    Flags::augment_args(
        Command::new("replay")
            .about("Decide the requests of an access log by other rules")
            .after_help(HELP),
    )
}

/// Runs it.
pub fn run(matches: &ArgMatches) -> ExitCode {
    let flags = match Flags::from_arg_matches(matches) {
        Ok(flags) => flags,
        Err(error) => return failed(EXIT_USAGE, &error.to_string()),
    };
    match replay(&flags) {
        Ok(code) => code,
        Err((code, message)) => failed(code, &message),
    }
}

fn failed(code: u8, message: &str) -> ExitCode {
    // Standard error may be closed; the exit code still tells.
    let _ = writeln!(io::stderr(), "porteiro replay: {message}");
    ExitCode::from(code)
}

type Failure = (u8, String);

fn replay(flags: &Flags) -> Result<ExitCode, Failure> {
    if flags.config.len() > 2 {
        return Err((
            EXIT_USAGE,
            "at most two --config can be compared".to_owned(),
        ));
    }
    let mut rules = Vec::new();
    for path in &flags.config {
        rules.push(load(path)?);
    }
    let mapping = Mapping::new(MappingOptions {
        time: flags.time.clone(),
        domain: flags.domain.clone(),
        descriptors: flags.descriptor.clone(),
        cost: flags.cost.clone(),
    });
    let mapping = mapping.map_err(|error| (EXIT_USAGE, format!("--descriptor: {error}")))?;
    let of_trace = |what: String| (EXIT_NO_TRACE, format!("{}: {what}", flags.trace.display()));
    let (reader, size) = open(&flags.trace).map_err(|error| of_trace(error.to_string()))?;
    let mut trace =
        Trace::new(reader, flags.format, mapping).map_err(|error| of_trace(error.to_string()))?;
    let mut refusals = Refusals::create(flags.refusals.as_deref())?;
    let bar = progress_bar(size);
    let mut lines = 0_u64;
    let mut replay = Replay::new(rules);
    let done = replay.run(
        &mut trace,
        Order::new(flags.order),
        &mut |record, decision| refusals.write(record, decision),
        &mut |position| {
            lines += 1;
            if lines.is_multiple_of(4_096) {
                bar.set_position(position);
            }
        },
    );
    bar.finish_and_clear();
    done.map_err(|error| of_trace(error.to_string()))?;
    refusals.finish()?;
    let names: Vec<String> = flags
        .config
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let report = Report {
        replay: &replay,
        names: &names,
        top: flags.top,
    };
    // Whoever closed standard output did not want to read it.
    let _ = write!(io::stdout().lock(), "{report}");
    Ok(verdict(&replay, flags.fail_if_denied_over))
}

fn verdict(replay: &Replay, allowed: Option<Share>) -> ExitCode {
    let Some(totals) = replay.sides().last().map(Side::totals) else {
        return ExitCode::SUCCESS;
    };
    if totals.asked == 0 && replay.seen().bad > 0 {
        return failed(EXIT_NO_REQUESTS, "not one line of the trace is a request");
    }
    match allowed {
        Some(share) if share.is_less_than(totals.refused, totals.asked) => failed(
            EXIT_DENIED,
            "more was refused than --fail-if-denied-over allows",
        ),
        _ => ExitCode::SUCCESS,
    }
}

/// The rules of a path; its findings go to standard error, errors among them end the program.
fn load(path: &Path) -> Result<Rules, Failure> {
    let loaded = config::load(path, &LoadOptions::default());
    for finding in &loaded.findings {
        let _ = writeln!(io::stderr(), "{finding}");
    }
    loaded.into_rules().map_err(|_| {
        (
            EXIT_USAGE,
            format!("{}: the rules are refused", path.display()),
        )
    })
}

/// The trace and its size in bytes, if it has one.
fn open(path: &Path) -> io::Result<(Box<dyn BufRead>, Option<u64>)> {
    const BUFFER: usize = 256 * 1_024;
    if path == Path::new("-") {
        return Ok((
            Box::new(BufReader::with_capacity(BUFFER, io::stdin())),
            None,
        ));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            "is a directory",
        ));
    }
    let size = metadata.is_file().then_some(metadata.len());
    let file: Box<dyn Read> = Box::new(file);
    Ok((Box::new(BufReader::with_capacity(BUFFER, file)), size))
}

/// Drawn on standard error when that is a terminal, else not at all.
fn progress_bar(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{wide_bar} {percent}% {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {bytes} {bytes_per_sec}",
        ),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn format(text: &str) -> Result<Format, &'static str> {
    match text {
        "json" => Ok(Format::Json),
        "csv" => Ok(Format::Csv),
        _ => Err("write json or csv"),
    }
}

/// A share of the requests, in millionths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share(u64);

impl FromStr for Share {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        const WANTED: &str = "write a share from 0% to 100%, such as 1% or 0.05%";
        let number = text.strip_suffix('%').ok_or(WANTED)?.trim_end();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 6 {
            return Err(WANTED);
        }
        let millionths: u64 = format!("{whole}{decimals:0<6}")
            .parse()
            .map_err(|_| WANTED)?;
        (millionths <= 100_000_000)
            .then_some(Self(millionths))
            .ok_or(WANTED)
    }
}

impl Share {
    fn is_less_than(self, part: u64, whole: u64) -> bool {
        u128::from(part) * 100_000_000 > u128::from(whole) * u128::from(self.0)
    }
}

/// Where `--refusals` go.
struct Refusals {
    file: Option<BufWriter<File>>,
    error: Option<io::Error>,
}

impl Refusals {
    fn create(path: Option<&Path>) -> Result<Self, Failure> {
        let file = path.map(File::create).transpose();
        Ok(Self {
            file: file
                .map_err(|error| Self::failure(&error))?
                .map(BufWriter::new),
            error: None,
        })
    }

    /// One line for each limit that was over.
    fn write(&mut self, record: &Record, decision: &Decision<'_>) {
        let Some(file) = self.file.as_mut().filter(|_| self.error.is_none()) else {
            return;
        };
        for over in decision.over() {
            let mut caller = String::new();
            if let Some(descriptor) = decision.request.descriptors.get(over.descriptor) {
                notation::write(decision.request.entries(descriptor), &mut caller);
            }
            let retry_after_ms = match over.outcome.retry {
                Retry::After(wait) => Some(wait.as_millis_up()),
                Retry::Never => None,
            };
            let line = json!({
                "line": record.line,
                "time": time::show(record.time),
                "domain": decision.request.domain,
                "descriptor": caller,
                "rule": over.rule.map(|rule| rule.path.as_str()),
                "limit": over.limit.to_string(),
                "name": over.limit.name.as_deref(),
                "retry_after_ms": retry_after_ms,
            });
            if let Err(error) = writeln!(file, "{line}") {
                self.error = Some(error);
                return;
            }
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        let flushed = self.file.as_mut().map_or(Ok(()), Write::flush);
        match self.error.map_or(flushed, Err) {
            Ok(()) => Ok(()),
            Err(error) => Err(Self::failure(&error)),
        }
    }

    fn failure(error: &io::Error) -> Failure {
        (EXIT_IO, format!("--refusals: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact() {
        let share = |text: &str| text.parse::<Share>();
        assert_eq!(share("1%"), Ok(Share(1_000_000)));
        assert_eq!(share("0.05%"), Ok(Share(50_000)));
        assert_eq!(share("100%"), Ok(Share(100_000_000)));
        for text in ["1", "%", "101%", "-1%", "1.%", ".5%", "1e2%", "0.0000001%"] {
            assert!(share(text).is_err(), "{text}");
        }
        let one = Share(1_000_000);
        assert!(!one.is_less_than(1, 100));
        assert!(one.is_less_than(10_001, 1_000_000));
        assert!(!one.is_less_than(0, 0));
        assert!(Share(0).is_less_than(1, u64::MAX));
    }
}
