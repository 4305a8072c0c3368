//! What the program can be asked to do: one file or folder per subcommand.
//!
//! A subcommand is a `command()` for [`clap`] and a `run()` that returns an exit code; both are
//! named in [`COMMANDS`] and nowhere else.

pub mod bench;
pub mod check;
pub mod explain;
pub mod replay;
pub mod serve;
mod settings;
pub mod simulate;

use std::{ffi::OsString, process::ExitCode};

use clap::{ArgMatches, Command};

/// Wrong flags, environment or rule files (`EX_USAGE` of sysexits).
pub const EXIT_USAGE: u8 = 64;
/// A bug of ours (`EX_SOFTWARE`).
pub const EXIT_BUG: u8 = 70;
/// The deadline cut connections while stopping (`EX_TEMPFAIL`).
pub const EXIT_CUT: u8 = 75;

struct Subcommand {
    command: fn() -> Command,
    run: fn(&ArgMatches) -> ExitCode,
}

/// Every subcommand; the first one is meant when none is named.
const COMMANDS: &[Subcommand] = &[
    Subcommand {
        command: serve::command,
        run: serve::run,
    },
    Subcommand {
        command: check::command,
        run: check::run,
    },
    Subcommand {
        command: explain::command,
        run: explain::run,
    },
    Subcommand {
        command: simulate::command,
        run: simulate::run,
    },
    Subcommand {
        command: replay::command,
        run: replay::run,
    },
    Subcommand {
        command: bench::command,
        run: bench::run,
    },
];

/// Runs the program with its command line, the name of the program first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args: Vec<OsString> = args.into_iter().collect();
    if let Some(name) = implied(&args) {
        args.insert(1.min(args.len()), name.into());
    }
    let commands = COMMANDS.iter().map(|subcommand| (subcommand.command)());
    let program = Command::new("porteiro")
        .version(env!("CARGO_PKG_VERSION"))
        .about(env!("CARGO_PKG_DESCRIPTION"))
        .after_help("Without a subcommand: serve.")
        .subcommand_required(true)
        .subcommands(commands);
    let matches = match program.try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            // Standard output or error may be closed; the exit code still tells.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(EXIT_USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let asked = matches.subcommand().and_then(|(name, matches)| {
        let found = COMMANDS
            .iter()
            .find(|subcommand| (subcommand.command)().get_name() == name)?;
        Some((found.run)(matches))
    });
    asked.unwrap_or(ExitCode::from(EXIT_USAGE))
}

/// To standard error, whatever the log level: without it nobody knows why nothing happens.
#[expect(clippy::print_stderr, reason = "a program says why it does not start")]
fn complain(what: &str) {
    eprintln!("porteiro: {what}");
}

/// The subcommand that is meant when flags follow the program's name, or nothing does.
fn implied(args: &[OsString]) -> Option<&'static str> {
    let first = args.get(1).map(|arg| arg.to_string_lossy());
    match first.as_deref() {
        Some("-h" | "--help" | "-V" | "--version" | "help") => None,
        Some(word) if !word.starts_with('-') => None,
        _ => Some("serve"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn implied_by(args: &[&str]) -> Option<&'static str> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        implied(&args)
    }

    #[test]
    fn serve_is_meant_when_no_word_follows() {
        assert_eq!(implied_by(&["porteiro"]), Some("serve"));
        assert_eq!(implied_by(&["porteiro", "--grpc", ":1"]), Some("serve"));
        assert_eq!(implied_by(&["porteiro", "check", "x"]), None);
        assert_eq!(implied_by(&["porteiro", "--help"]), None);
    }

    #[test]
    fn every_command_line_is_consistent() {
        for subcommand in COMMANDS {
            (subcommand.command)().debug_assert();
        }
    }
}
