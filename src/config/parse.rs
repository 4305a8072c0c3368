//! From texts to domains, with every finding of every file.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hasher,
    sync::Arc,
};

use siphasher::sip::SipHasher13;

use crate::{
    config::{
        compile::{self, Part},
        document,
        finding::{Finding, Problem, Severity},
        options::LoadOptions,
        raw::RawFile,
        reader::Reader,
        shape,
    },
    rules::{Domain, Rules},
};

/// What was read of a set of rule files.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Every domain that a file names, broken ones included, by name.
    pub domains: Vec<LoadedDomain>,
    /// Files of which not even the domain can be told, and directories that could not be read.
    pub unknown: Vec<Arc<str>>,
    /// Everything that was found, in the order of the files.
    pub findings: Vec<Finding>,
    /// Identifies the contents of the files: 16 hex digits.
    pub hash: String,
}

/// One domain that was read.
#[derive(Debug)]
pub struct LoadedDomain {
    /// As requests call it.
    pub name: Arc<str>,
    /// The rules; none when one of its files has an error.
    pub domain: Option<Domain>,
    /// The files that name it.
    pub files: Vec<Arc<str>>,
}

impl Loaded {
    /// Whether anything was refused.
    pub fn has_errors(&self) -> bool {
        self.errors() > 0
    }

    /// The rules of a start: an error anywhere refuses all.
    ///
    /// # Errors
    ///
    /// Every finding, warnings included.
    pub fn into_rules(self) -> Result<Rules, Vec<Finding>> {
        if self.has_errors() {
            return Err(self.findings);
        }
        let domains = self.domains.into_iter();
        let rules = Rules::new(domains.filter_map(|domain| domain.domain));
        Ok(rules.of_revision(&self.hash))
    }

    /// How many findings refuse something.
    pub fn errors(&self) -> usize {
        let findings = self.findings.iter();
        findings
            .filter(|finding| finding.severity == Severity::Error)
            .count()
    }
}

/// Reads rule files that are in memory already.
pub fn parse(files: &[(&str, &str)], options: &LoadOptions) -> Loaded {
    let own = |(name, text): &(&str, &str)| (Arc::from(*name), Ok((*text).to_owned()));
    parse_all(files.iter().map(own).collect(), options)
}

/// Reads files in order; one that could not even be opened comes with the reason.
pub(super) fn parse_all(
    files: Vec<(Arc<str>, Result<String, Problem>)>,
    options: &LoadOptions,
) -> Loaded {
    let mut hash = SipHasher13::new();
    let mut domains: BTreeMap<Box<str>, Vec<Part>> = BTreeMap::new();
    let mut loaded = Loaded::default();
    let mut order = HashMap::new();
    for (name, text) in files {
        let place = order.len();
        order.entry(Arc::clone(&name)).or_insert(place);
        let content = text.as_deref().unwrap_or_default();
        hash.write(content.as_bytes());
        // No text has this byte: where a file ends makes a difference.
        hash.write_u8(0xff);
        let part = read(Arc::clone(&name), text);
        let domain = &part.file.domain.value;
        if domain.is_empty() {
            loaded.unknown.push(name);
            loaded.findings.extend(part.reader.into_findings());
        } else {
            domains.entry(domain.clone()).or_default().push(part);
        }
    }
    for (name, mut parts) in domains {
        if !options.merge_domains {
            refuse_repeated(&mut parts);
        }
        let domain = compile::compile(&name, &mut parts);
        let sound = !parts.iter().any(|part| part.reader.has_errors());
        loaded.domains.push(LoadedDomain {
            name: Arc::clone(&domain.name),
            domain: sound.then_some(domain),
            files: parts
                .iter()
                .map(|part| Arc::clone(part.reader.file()))
                .collect(),
        });
        let findings = parts.into_iter().map(|part| part.reader.into_findings());
        loaded.findings.extend(findings.flatten());
    }
    loaded
        .findings
        .sort_by_cached_key(|finding| (order.get(&finding.file).copied(), finding.at));
    loaded.hash = format!("{:016x}", hash.finish());
    loaded
}

fn read(name: Arc<str>, text: Result<String, Problem>) -> Part {
    let mut reader = Reader::new(name);
    let root = document::read(&mut reader, text, "add `domain:` and `descriptors:`");
    let Some(root) = root.as_deref() else {
        return Part {
            reader,
            file: RawFile::default(),
        };
    };
    if reader.has_errors() {
        let file = RawFile::of_broken(root);
        return Part { reader, file };
    }
    shape::check(&mut reader, root);
    let file = RawFile::read(&mut reader, root);
    if file.domain.value.is_empty() {
        let at = if file.domain.at.line > 0 {
            file.domain.at
        } else {
            document::START
        };
        reader.field("domain", |reader| {
            reader.error(at, "the domain is missing", "add `domain:` with a name");
        });
    }
    Part { reader, file }
}

fn refuse_repeated(parts: &mut [Part]) {
    let Some((first, rest)) = parts.split_first_mut() else {
        return;
    };
    for part in rest {
        let at = part.file.domain.at;
        let what = format!("the domain is in {} already", first.reader.file());
        part.reader.field("domain", |reader| {
            reader.error(
                at,
                what,
                "put its descriptors into one file, or merge domains",
            );
        });
    }
}
