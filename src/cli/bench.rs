//! `porteiro bench`: sends load to a server of Envoy's rate limit protocol, ours or another.

use std::{
    fs,
    io::{self, Write as _},
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{ArgMatches, Args, Command, FromArgMatches as _};
use serde_json::json;

use super::{EXIT_USAGE, complain, serve, settings::values};
use crate::{
    bench::{
        self, Listener, Plan,
        keys::Distribution,
        picture,
        report::{Probed, StepReport, warning},
        schedule::Arrivals,
        table,
        target::Target,
        template::{Descriptors, Template},
    },
    chart::svg,
};

// The flags. As a doc comment this would be the help of the subcommand.
#[derive(Debug, Args)]
struct Flags {
    /// Server of plain-text gRPC
    #[arg(long, env = "PORTEIRO_BENCH_TARGET", value_name = "http://HOST:PORT")]
    #[arg(default_value = "http://127.0.0.1:8081")]
    target: Target,

    /// Calls per second; several rates are measured one after the other
    #[arg(
        long,
        env = "PORTEIRO_BENCH_RATE",
        value_name = "N[,N2,…]",
        value_delimiter = ','
    )]
    #[arg(default_value = "1000")]
    rate: Vec<NonZeroU64>,

    /// How long each rate is measured
    #[arg(
        long,
        env = "PORTEIRO_BENCH_DURATION",
        value_name = "TIME",
        default_value = "10s"
    )]
    #[arg(value_parser = values::positive_duration)]
    duration: Duration,

    /// How long each rate is sent before it is measured
    #[arg(
        long,
        env = "PORTEIRO_BENCH_WARM_UP",
        value_name = "TIME",
        default_value = "2s"
    )]
    #[arg(value_parser = values::duration)]
    warm_up: Duration,

    /// How long answers are awaited after the last call of a rate
    #[arg(
        long,
        env = "PORTEIRO_BENCH_DRAIN",
        value_name = "TIME",
        default_value = "5s"
    )]
    #[arg(value_parser = values::duration)]
    drain: Duration,

    /// Schedule of the calls: uniform or poisson
    #[arg(
        long,
        env = "PORTEIRO_BENCH_ARRIVALS",
        value_name = "NAME",
        default_value = "uniform"
    )]
    arrivals: Arrivals,

    /// Rule tree to ask
    #[arg(
        long,
        env = "PORTEIRO_BENCH_DOMAIN",
        value_name = "NAME",
        default_value = "bench"
    )]
    domain: String,

    /// Descriptors to ask about; {key} stands for the key of the call, `;` separates descriptors
    #[arg(long, env = "PORTEIRO_BENCH_DESCRIPTOR", value_name = "K=V,K2=V2;…")]
    #[arg(default_value = "tenant=bench,user=user-{key}")]
    descriptor: Vec<Descriptors>,

    /// What is called: should-rate-limit, or acquire with a release for every lease
    #[arg(
        long,
        env = "PORTEIRO_BENCH_CALL",
        value_name = "NAME",
        default_value = "should-rate-limit"
    )]
    #[arg(value_parser = ["should-rate-limit", "acquire"])]
    call: String,

    /// How long a lease is held before it is released
    #[arg(
        long,
        env = "PORTEIRO_BENCH_HOLD",
        value_name = "TIME",
        default_value = "10ms"
    )]
    #[arg(value_parser = values::duration)]
    hold: Duration,

    /// Cost of should-rate-limit; 0 means 1
    #[arg(
        long,
        env = "PORTEIRO_BENCH_HITS",
        value_name = "N",
        default_value = "0"
    )]
    hits: u32,

    /// Number of different keys
    #[arg(
        long,
        env = "PORTEIRO_BENCH_KEYS",
        value_name = "N",
        default_value = "100000"
    )]
    keys: NonZeroU64,

    /// How often each key comes: uniform, zipf, zipf:EXPONENT, hot or hot:SHARE
    #[arg(long, env = "PORTEIRO_BENCH_DISTRIBUTION", value_name = "NAME")]
    #[arg(default_value = "uniform")]
    distribution: Distribution,

    /// Connections, all threads together
    #[arg(
        long,
        env = "PORTEIRO_BENCH_CONNECTIONS",
        value_name = "N",
        default_value = "8"
    )]
    connections: NonZeroUsize,

    /// Threads, each with its share of the connections
    #[arg(
        long,
        env = "PORTEIRO_BENCH_THREADS",
        value_name = "N",
        default_value = "1"
    )]
    threads: NonZeroUsize,

    /// Most calls without an answer; beyond that calls wait, and their waiting is counted
    #[arg(
        long,
        env = "PORTEIRO_BENCH_MAX_IN_FLIGHT",
        value_name = "N",
        default_value = "10000"
    )]
    max_in_flight: NonZeroUsize,

    /// grpc-timeout of every call, as Envoy sends it; without it none is sent
    #[arg(long, env = "PORTEIRO_BENCH_DEADLINE", value_name = "TIME")]
    #[arg(value_parser = values::positive_duration)]
    deadline: Option<Duration>,

    /// The same seed gives the same keys and instants
    #[arg(
        long,
        env = "PORTEIRO_BENCH_SEED",
        value_name = "N",
        default_value = "1"
    )]
    seed: u64,

    /// Serve the empty decision at this address instead of sending load: the transport and the
    /// runtimes of `porteiro serve`, to measure what they cost alone
    #[arg(long, env = "PORTEIRO_BENCH_SERVE_NOOP", value_name = "ADDR")]
    serve_noop: Option<String>,

    /// Write the report here, with all percentiles
    #[arg(long, env = "PORTEIRO_BENCH_JSON", value_name = "FILE")]
    json: Option<PathBuf>,

    /// Draw the latencies of every rate by percentile into this file
    #[arg(long, env = "PORTEIRO_BENCH_SVG", value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The subcommand.
pub fn command() -> Command {
    Flags::augment_args(
        Command::new("bench")
            .about("Sends load by a schedule and measures latencies from the scheduled instant")
            .after_help(
                "The first call is shown before the load starts. Exit codes: 0 measured, whatever \
                 it was; 1 the server cannot be reached or is none; 64 wrong flags.",
            ),
    )
}

/// Runs it.
pub fn run(flags: &ArgMatches) -> ExitCode {
    let flags = match Flags::from_arg_matches(flags) {
        Ok(flags) => flags,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Some(address) = flags.serve_noop {
        return serve_noop(&address);
    }
    let (json, svg) = (flags.json.clone(), flags.svg.clone());
    let plan = plan(flags);
    let steps = match bench::run(&plan, &mut Terminal) {
        Ok(steps) => steps,
        Err(error) => {
            complain(&format!("{}: {error}", plan.target));
            return ExitCode::FAILURE;
        }
    };
    let mut code = ExitCode::SUCCESS;
    say(&format!("\n{}\n{}", table::table(&steps), table::LEGEND));
    let releases = table::releases(&steps);
    if !releases.is_empty() {
        say(&format!(
            "\nReleases, from the instant the lease was wanted back:\n{releases}"
        ));
    }
    for warning in steps.iter().filter_map(warning) {
        say(&format!("\n! {warning}"));
    }
    let json = json.map(|file| save(&file, Ok(report(&plan, &steps))));
    let svg = svg.map(|file| {
        let drawn = svg::draw(&picture::figure(&plan.target, &steps));
        save(&file, drawn.map_err(|error| error.to_string()))
    });
    for problem in [json, svg].into_iter().flatten().filter_map(Result::err) {
        complain(&problem);
        code = ExitCode::FAILURE;
    }
    code
}

/// Writes a file that may not have come to be.
fn save(file: &Path, content: Result<String, String>) -> Result<(), String> {
    let written = content.and_then(|text| fs::write(file, text).map_err(|error| error.to_string()));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// `porteiro serve --noop`, with HTTP and admin at ports that nobody needs to know.
fn serve_noop(address: &str) -> ExitCode {
    let flags = [
        "serve", "--noop", "--grpc", address, "--http", ANY, "--admin", ANY,
    ];
    match serve::command().try_get_matches_from(flags) {
        Ok(flags) => serve::run(&flags),
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// A free port.
const ANY: &str = "127.0.0.1:0";

fn plan(flags: Flags) -> Plan {
    let descriptors = flags.descriptor.into_iter().flat_map(|some| some.0);
    let descriptors = Descriptors(descriptors.collect());
    Plan {
        template: match flags.call.as_str() {
            "acquire" => Template::acquire(&flags.domain, descriptors),
            _ => Template::should_rate_limit(&flags.domain, descriptors, flags.hits),
        },
        target: flags.target,
        keys: flags.keys,
        distribution: flags.distribution,
        rates: flags.rate,
        arrivals: flags.arrivals,
        warm_up: flags.warm_up.into(),
        duration: flags.duration.into(),
        drain: flags.drain.into(),
        hold: flags.hold.into(),
        connections: flags.connections,
        lanes: flags.threads,
        max_in_flight: flags.max_in_flight,
        deadline: flags.deadline.map(Into::into),
        seed: flags.seed,
    }
}

/// Everything that was measured, with what it was measured by.
fn report(plan: &Plan, steps: &[StepReport]) -> String {
    let report = json!({
        "porteiro": env!("CARGO_PKG_VERSION"),
        "target": plan.target.to_string(),
        "arrivals": plan.arrivals,
        "keys": plan.keys,
        "distribution": plan.distribution,
        "connections": plan.connections,
        "threads": plan.lanes,
        "warm_up_seconds": plan.warm_up.as_secs_f64(),
        "duration_seconds": plan.duration.as_secs_f64(),
        "seed": plan.seed,
        "quantiles": bench::report::QUANTILES,
        "steps": steps,
    });
    format!("{report:#}\n")
}

struct Terminal;

impl Listener for Terminal {
    fn probed(&mut self, probed: &Probed) {
        let statuses = probed.statuses.join("; ");
        say(&format!("first answer: {} ({statuses})", probed.overall));
        if !probed.limited {
            say(
                "! no limit applies to these descriptors: this measures a server that has nothing to decide",
            );
        }
    }

    fn measured(&mut self, step: &StepReport) {
        let answers = step.answered_per_second;
        say(&format!("{}/s: {answers:.0} answers per second", step.rate));
        for (why, count) in &step.failures {
            say(&format!("    {count} failed: {why}"));
        }
    }
}

fn say(text: &str) {
    // Whoever listened may be gone; the report is still written.
    let _ = writeln!(io::stdout(), "{text}");
}
