//! `porteiro check`: every finding of rule files, without serving them.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::EXIT_USAGE;
use crate::{
    config::{self, Finding, LoadOptions, Loaded, Position, Severity},
    store::redis::{RedisOptions, not_shared},
};

/// The subcommand.
pub fn command() -> Command {
    Command::new("check")
        .about("Reads rule files and tells everything that is wrong with them")
        .after_help(
            "One line per finding: file:line:column: error|warning: field: what is wrong; what to \
             do.\nExit codes: 0 the files are fine, warnings or not; 64 they would be refused.",
        )
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .help("A rule file, or a directory of *.yaml and *.yml files")
                .required(true)
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("merge-domains")
                .long("merge-domains")
                .help("Several files may have one domain")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("store")
                .long("store")
                .value_name("memory|URL")
                .help("As for serve: with a shared one, also warns of what it cannot count over all replicas")
                .default_value("memory")
                .value_parser(shared_store),
        )
}

/// Runs it.
pub fn run(matches: &ArgMatches) -> ExitCode {
    let options = LoadOptions {
        merge_domains: matches.get_flag("merge-domains"),
        ..LoadOptions::default()
    };
    let Some(path) = matches.get_one::<PathBuf>("path") else {
        return ExitCode::from(EXIT_USAGE);
    };
    let mut loaded = config::load(path, &options);
    if matches.get_one("store") == Some(&true) {
        loaded.findings.extend(kept_apart(&loaded));
    }
    // A reader that went away has seen enough; the exit code still tells.
    let _ = report(path, &loaded, &mut io::stdout().lock());
    if loaded.has_errors() {
        ExitCode::from(EXIT_USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

/// Whether a `--store` is shared. Nothing is asked of it.
fn shared_store(text: &str) -> Result<bool, String> {
    if text == "memory" {
        return Ok(false);
    }
    // The URL may hold a password: it is not shown.
    let parsed = RedisOptions::parse(text).map_err(|error| error.to_string());
    parsed.map(|_| true)
}

/// Limits on work in flight that each replica counts on its own though the store is shared. One of
/// them keeps its whole domain from being counted over the fleet.
fn kept_apart(loaded: &Loaded) -> Vec<Finding> {
    let domains = loaded.domains.iter().filter_map(|d| d.domain.as_ref());
    let mut findings: Vec<Finding> = domains
        .flat_map(crate::rules::Domain::rules_in_flight)
        .filter_map(|rule| {
            let why = not_shared(&rule)?;
            Some(Finding {
                severity: Severity::Warning,
                file: rule.source.file.clone(),
                at: Position {
                    line: rule.source.line,
                    column: rule.source.column,
                },
                path: rule.path.clone(),
                what: format!(
                    "work in flight of its domain is counted by each replica on its own: {why}"
                ),
                advice: "drop it, or move the rule to a domain of its own".to_owned(),
            })
        })
        .collect();
    findings.sort_by(|a, b| (&a.file, a.at).cmp(&(&b.file, b.at)));
    findings
}

/// Writes every finding and a summary.
fn report(path: &Path, loaded: &Loaded, out: &mut dyn Write) -> io::Result<()> {
    for finding in &loaded.findings {
        writeln!(out, "{finding}")?;
    }
    let errors = loaded.errors();
    let warnings = loaded.findings.len() - errors;
    let result = if errors > 0 { "refused" } else { "fine" };
    writeln!(
        out,
        "{}: {result}; {}, {}, {}; version {}",
        path.display(),
        counted(loaded.domains.len(), "domain"),
        counted(errors, "error"),
        counted(warnings, "warning"),
        loaded.hash,
    )
}

fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shared_store_cannot_count_is_told_with_its_place() {
        let text = "domain: d\ndescriptors:\n- {key: k, concurrency: {limit: 3}}\n\
                    - {key: l, concurrency: {limit: 3, lifo: true}}\n\
                    - {key: m, concurrency: {limit: 3, on_shrink: revoke_newest}}\n";
        let loaded = config::parse(&[("f.yaml", text)], &LoadOptions::default());
        assert!(loaded.findings.is_empty(), "{:?}", loaded.findings);
        let told: Vec<String> = kept_apart(&loaded)
            .iter()
            .map(ToString::to_string)
            .collect();
        let apart = "work in flight of its domain is counted by each replica on its own";
        for (told, start) in told
            .iter()
            .zip(["f.yaml:4:3: warning: d.l: ", "f.yaml:5:3: warning: d.m: "])
        {
            assert!(told.starts_with(&format!("{start}{apart}")), "{told}");
        }
        assert_eq!(told.len(), 2);
    }

    #[test]
    fn a_store_is_read_as_serve_reads_it() {
        assert_eq!(shared_store("memory"), Ok(false));
        assert_eq!(shared_store("redis://user:hunter2@127.0.0.1"), Ok(true));
        assert!(shared_store("mysql://x").is_err_and(|error| !error.contains("mysql")));
    }

    #[test]
    fn findings_come_first_and_a_summary_last() {
        let text = "domain: d\nvalue: x\ndescriptors:\n- {key: k, rate_limit: {unit: dya}}\n";
        let loaded = config::parse(&[("f.yaml", text)], &LoadOptions::default());
        let mut out = Vec::new();
        report(Path::new("f.yaml"), &loaded, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert!(
            lines[0].starts_with("f.yaml:2:1: warning: value: "),
            "{out}"
        );
        assert!(
            lines[1].starts_with("f.yaml:4:31: error: descriptors[0].rate_limit.unit: "),
            "{out}"
        );
        assert!(
            lines[2].starts_with("f.yaml: refused; 1 domain, 1 error, 1 warning; version "),
            "{out}"
        );
        assert_eq!(lines.len(), 3);
    }
}
