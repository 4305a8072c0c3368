//! Experiment files: which kind of experiment, and what it is told.

use std::{fmt, path::Path};

use crate::{
    config::{
        Finding, Severity,
        document::{self, Node, Reader},
    },
    simulate::{limits, report::Report},
};

/// Something that can be tried out.
pub trait Experiment: fmt::Debug {
    /// Tries it. The same experiment always gives the same report.
    fn run(&self) -> Report;
}

/// Reads the file of one kind of experiment; files that it names are looked for beside it. Without
/// an experiment the reader has an error.
type Read = fn(&mut Reader, &Node, &Path) -> Option<Box<dyn Experiment>>;

/// Every kind, by its name in `kind:`.
const KINDS: [(&str, Read); 1] = [("limits", limits::file::read)];

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
    let mut kind = None;
    let mut named = false;
    reader.fields(root, &mut |reader, name, value| {
        if name == "kind" {
            named = true;
            kind = reader.choice(value, &KINDS);
        }
    });
    if !named {
        let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        let advice = format!("add `kind: {}`", names.join("` or `kind: "));
        reader.error(root.at, "the kind of the experiment is missing", advice);
    }
    (kind?.value)(reader, root, folder)
}
