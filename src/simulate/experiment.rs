//! Experiment files: which kind of experiment, and what it is told.

use std::{fmt, path::Path};

use crate::{
    config::{
        Finding, Severity,
        document::{self, Node, Reader},
    },
    simulate::{cases, limits, report::Report},
};

/// Something that can be tried out.
pub trait Experiment: fmt::Debug {
    /// Tries it. The same experiment always gives the same report.
    fn run(&self) -> Report;

    /// Lets each part be tried with one seed only, for a first look. What is accepted of means of
    /// several seeds may then not be met.
    fn shorten(&mut self) {}
}

/// A kind of experiment.
#[derive(Clone, Copy)]
enum Kind {
    Limits,
    Cases(&'static cases::Kind),
}

/// Every kind, by its name in `kind:`.
fn kinds() -> Vec<(&'static str, Kind)> {
    let cases = cases::KINDS
        .iter()
        .map(|(name, kind)| (*name, Kind::Cases(kind)));
    [("limits", Kind::Limits)]
        .into_iter()
        .chain(cases)
        .collect()
}

/// Reads an experiment file. There is no experiment exactly when a finding is an error.
pub fn load(path: &Path) -> (Option<Box<dyn Experiment>>, Vec<Finding>) {
    let (mut reader, root) = document::open(path, EMPTY);
    let folder = path.parent().unwrap_or(Path::new(""));
    let root = root.filter(|_| !reader.has_errors());
    let read = root.and_then(|root| read(&mut reader, &root, folder));
    let findings = reader.into_findings();
    let broken = findings
        .iter()
        .any(|finding| finding.severity == Severity::Error);
    (read.filter(|_| !broken), findings)
}

/// What to do about an empty file.
const EMPTY: &str = "add `kind:` and what that kind needs; see `porteiro simulate --help`";

fn read(reader: &mut Reader, root: &Node, folder: &Path) -> Option<Box<dyn Experiment>> {
    let kinds = kinds();
    let mut kind = None;
    let mut named = false;
    reader.fields(root, &mut |reader, name, value| {
        if name == "kind" {
            named = true;
            kind = reader.choice(value, &kinds);
        }
    });
    if !named {
        let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        let advice = format!("add `kind:` with one of {}", names.join(", "));
        reader.error(root.at, "the kind of the experiment is missing", advice);
    }
    match kind?.value {
        Kind::Limits => limits::file::read(reader, root, folder),
        Kind::Cases(kind) => Some(cases::file::read(kind, reader, root)),
    }
}
