//! `porteiro explain`: what rule files say of a request that comes first, and why.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use tokio::runtime;

use super::{EXIT_USAGE, complain};
use crate::{
    api::{counters, explain},
    config::{self, LoadOptions},
    engine::{Engine, EngineOptions},
    model::{key::KeyHasher, time::Clock},
    proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor,
    store::{
        Store,
        memory::{MemoryOptions, MemoryStore},
    },
};

/// The subcommand.
pub fn command() -> Command {
    let text = |name: &'static str| Arg::new(name).long(name).required(true);
    Command::new("explain")
        .about("Tells which rules a request finds and what it would be charged")
        .after_help(
            "Counters are fresh: a server tells how it stands there with GET /explain on its admin \
             port, or with porteiro.v1.LimiterService/Explain.\nExit codes: 0 explained, whether \
             the request passes or not; 64 wrong flags or rules.",
        )
        .arg(
            text("config")
                .value_name("PATH")
                .help("A rule file, or a directory of *.yaml and *.yml files")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(text("domain").value_name("NAME").help("As requests call it"))
        .arg(
            text("descriptor")
                .value_name("KEY=VALUE,…")
                .help("What is asked for, several times for several; a backslash takes the next character as it is")
                .action(ArgAction::Append),
        )
        .arg(
            Arg::new("cost")
                .long("cost")
                .value_name("UNITS")
                .help("Of each descriptor")
                .default_value("1")
                .value_parser(value_parser!(u64)),
        )
        .arg(
            Arg::new("merge-domains")
                .long("merge-domains")
                .help("Several files may have one domain")
                .action(ArgAction::SetTrue),
        )
}

/// Runs it.
pub fn run(matches: &ArgMatches) -> ExitCode {
    match explained(matches) {
        Ok(text) => {
            // A reader that went away has seen enough.
            let _ = io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            complain(&why);
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn explained(matches: &ArgMatches) -> Result<String, String> {
    let options = LoadOptions {
        merge_domains: matches.get_flag("merge-domains"),
        ..LoadOptions::default()
    };
    let path = matches.get_one::<PathBuf>("config");
    let path = path.ok_or("--config is missing")?;
    let domain = matches.get_one::<String>("domain");
    let domain = domain.ok_or("--domain is missing")?.clone();
    let cost = matches.get_one::<u64>("cost").copied();
    let texts = matches.get_many::<String>("descriptor");
    let descriptors = texts.unwrap_or_default().map(|text| {
        let descriptor = counters::descriptor(text);
        let descriptor = descriptor.map_err(|error| format!("--descriptor {text}: {error}"))?;
        Ok(RateLimitDescriptor {
            hits_addend: cost,
            ..descriptor
        })
    });
    let descriptors = descriptors.collect::<Result<Vec<_>, String>>()?;
    let rules = config::load(path, &options).into_rules();
    let rules = rules.map_err(|findings| {
        let lines = findings.iter().map(ToString::to_string);
        format!(
            "the rules are refused:\n{}",
            lines.collect::<Vec<_>>().join("\n")
        )
    })?;
    let engine = Engine::new(
        Clock::kernel(),
        KeyHasher::random(),
        Store::from(MemoryStore::new(MemoryOptions::default())),
        EngineOptions::default(),
    );
    engine.install(rules);
    let runtime = runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let text = runtime.block_on(explain::as_text(&engine, domain, descriptors));
    text.map_err(|status| status.message().to_owned())
}
