//! Rule files on disk: one file, or every `*.yaml` and `*.yml` below a directory.
//!
//! Entries whose name starts with a dot are left out, as is everything else than rule files. A
//! Kubernetes `ConfigMap` is a directory of links into `..data`: each file is seen once, under its
//! link.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::config::{
    document,
    finding::{Finding, Position, Problem, Severity},
    options::LoadOptions,
    parse::{Loaded, parse_all},
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
            (name, document::text(path, options.max_file_bytes))
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory of its own that goes away with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir();
            let dir = dir.join(format!("porteiro-load-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn load(&self) -> Loaded {
            load(&self.0, &LoadOptions::default())
        }

        fn files(&self, loaded: &Loaded) -> Vec<String> {
            let files = loaded.domains.iter().flat_map(|domain| &domain.files);
            let below = |file: &Arc<str>| {
                let path = Path::new(&**file).strip_prefix(&self.0).unwrap();
                path.display().to_string()
            };
            files.map(below).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn rule_files_are_found_below_a_directory_by_their_endings() {
        let scratch = Scratch::new("endings");
        scratch.write("b.yaml", "domain: b");
        scratch.write("a/c.yml", "domain: a");
        scratch.write("README.md", "no rules");
        scratch.write("x.yaml.bak", "domain: x");
        scratch.write(".hidden.yaml", "domain: h");
        scratch.write(".git/d.yaml", "domain: g");
        let loaded = scratch.load();
        assert_eq!(scratch.files(&loaded), ["a/c.yml", "b.yaml"]);
        assert!(!loaded.has_errors());
        let one = load(&scratch.0.join("x.yaml.bak"), &LoadOptions::default());
        assert_eq!(&*one.domains[0].name, "x", "a file that is named is read");
    }

    #[test]
    fn a_config_map_is_seen_once() {
        let scratch = Scratch::new("configmap");
        scratch.write("..2026_01_01/a.yaml", "domain: a");
        symlink("..2026_01_01", scratch.0.join("..data")).unwrap();
        symlink("..data/a.yaml", scratch.0.join("a.yaml")).unwrap();
        let loaded = scratch.load();
        assert!(!loaded.has_errors(), "{:?}", loaded.findings);
        assert_eq!(scratch.files(&loaded), ["a.yaml"]);
    }

    #[test]
    fn what_cannot_be_read_is_a_finding() {
        let scratch = Scratch::new("unreadable");
        let words = |loaded: Loaded| loaded.findings[0].to_string();
        assert!(words(scratch.load()).contains("no rule files"));
        symlink("nowhere", scratch.0.join("a.yaml")).unwrap();
        assert!(words(scratch.load()).contains("a.yaml: error: cannot be read"));
        fs::remove_file(scratch.0.join("a.yaml")).unwrap();
        symlink(".", scratch.0.join("loop")).unwrap();
        assert!(words(scratch.load()).contains("directories nested deeper"));
        fs::remove_file(scratch.0.join("loop")).unwrap();
        fs::write(scratch.0.join("b.yaml"), b"domain: \xff").unwrap();
        assert!(words(scratch.load()).contains("b.yaml: error: not UTF-8 at byte 8"));
        let small = LoadOptions {
            max_file_bytes: 8,
            ..LoadOptions::default()
        };
        let loaded = load(&scratch.0, &small);
        assert!(words(loaded).contains("larger than 8 bytes"));
        let loaded = load(Path::new("/does/not/exist"), &small);
        assert_eq!(loaded.unknown, [Arc::from("/does/not/exist")]);
        assert!(words(loaded).starts_with("/does/not/exist: error: cannot be read"));
    }
}
