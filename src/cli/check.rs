//! `porteiro check`: every finding of rule files, without serving them.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::EXIT_USAGE;
use crate::config::{self, LoadOptions, Loaded};

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
    let loaded = config::load(path, &options);
    // A reader that went away has seen enough; the exit code still tells.
    let _ = report(path, &loaded, &mut io::stdout().lock());
    if loaded.has_errors() {
        ExitCode::from(EXIT_USAGE)
    } else {
        ExitCode::SUCCESS
    }
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
