//! Rule files on disk: one file, or every `*.yaml` and `*.yml` below a directory.
//!
//! Entries whose name starts with a dot are left out, as is everything else than rule files. A
//! Kubernetes `ConfigMap` is a directory of links into `..data`: each file is seen once, under its
//! link.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::config::{
    finding::{Finding, Position, Severity},
    parse::{LoadOptions, Loaded, parse_all},
    yaml::Problem,
};

/// Directories inside each other; links may make a circle.
const DEEPEST: usize = 16;
/// Rule files of one load.
const MOST_FILES: usize = 10_000;

/// Reads a rule file, or all of a directory in the order of their names.
///
/// What cannot be read is a finding too.
pub fn load(path: &Path, options: &LoadOptions) -> Loaded {
    let mut paths = Vec::new();
    let mut findings: Vec<Finding> = Vec::new();
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => collect(path, 0, &mut paths, &mut findings),
        Ok(_) => paths.push(path.to_owned()),
        Err(error) => findings.push(unreadable(path, &error)),
    }
    if paths.len() > MOST_FILES {
        let what = format!("more than {MOST_FILES} rule files");
        findings.push(about(path, what, "are you sure of the directory?"));
        paths.clear();
    } else if paths.is_empty() && findings.is_empty() {
        let what = "no rule files (*.yaml, *.yml)".to_owned();
        findings.push(about(path, what, "add one, or name another path"));
    }
    let texts: Vec<(Arc<str>, Result<String, Problem>)> = paths
        .iter()
        .map(|path| {
            let name: Arc<str> = path.display().to_string().into();
            (name, read(path, options.max_file_bytes))
        })
        .collect();
    let mut loaded = parse_all(texts, options);
    let unread = findings.iter().map(|finding| Arc::clone(&finding.file));
    loaded.unknown.extend(unread);
    findings.append(&mut loaded.findings);
    loaded.findings = findings;
    loaded
}

/// Every rule file below a directory, by name.
fn collect(dir: &Path, depth: usize, paths: &mut Vec<PathBuf>, findings: &mut Vec<Finding>) {
    if depth > DEEPEST {
        let what = format!("directories nested deeper than {DEEPEST}");
        findings.push(about(dir, what, "look for a link that leads back"));
        return;
    }
    let names = fs::read_dir(dir).and_then(|entries| {
        entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<Vec<_>>>()
    });
    let mut names = match names {
        Ok(names) => names,
        Err(error) => return findings.push(unreadable(dir, &error)),
    };
    names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
    names.sort();
    for name in names {
        let path = dir.join(name);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => collect(&path, depth + 1, paths, findings),
            Ok(metadata) if metadata.is_file() && is_rule_file(&path) => paths.push(path),
            // A link that leads nowhere, or a file that has just gone.
            Err(error) if is_rule_file(&path) => findings.push(unreadable(&path, &error)),
            Ok(_) | Err(_) => {}
        }
    }
}

fn is_rule_file(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ending == "yaml" || ending == "yml")
}

fn read(path: &Path, max_bytes: u64) -> Result<String, Problem> {
    let problem = |what: String| Problem {
        at: Position::default(),
        what,
    };
    let cannot = |error: io::Error| problem(format!("cannot be read: {error}"));
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(cannot)?;
    // One more than allowed, to tell a file of exactly that size from a larger one.
    let limited = file
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes);
    let length = limited.map_err(cannot)?;
    if u64::try_from(length).unwrap_or(u64::MAX) > max_bytes {
        return Err(problem(format!("larger than {max_bytes} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        problem(format!("not UTF-8 at byte {valid}"))
    })
}

fn unreadable(path: &Path, error: &io::Error) -> Finding {
    about(path, format!("cannot be read: {error}"), "")
}

fn about(path: &Path, what: String, advice: &str) -> Finding {
    Finding {
        severity: Severity::Error,
        file: path.display().to_string().into(),
        at: Position::default(),
        path: String::new(),
        what,
        advice: advice.to_owned(),
    }
}
