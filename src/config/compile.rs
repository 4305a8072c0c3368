//! From raw descriptors to a domain of [`crate::rules`].

use std::{collections::HashSet, sync::Arc};

use crate::{
    config::{
        finding::quoted,
        raw::{RawDescriptor, RawFile, RawRateLimit},
        reader::{Located, Reader},
    },
    model::{
        limit::{Algorithm, Anchor, Quota},
        request::Unit,
    },
    rules::{
        Domain,
        answer::Scope,
        limit::{CostUnit, Limit, Shown},
        tree::{Child, Level, Node, Rule, Source},
        value::{Glob, Matcher},
    },
};

/// One file of a domain, read and about to be compiled.
pub(super) struct Part {
    pub(super) reader: Reader,
    pub(super) file: RawFile,
}

/// Compiles the files of one domain, in their order. With errors the domain is not to be used.
pub(super) fn compile(name: &str, parts: &mut [Part]) -> Domain {
    let mut domain = Domain {
        name: name.into(),
        stacking: crate::rules::Stacking::default(),
        on_store_failure: crate::rules::OnStoreFailure::default(),
        answer: crate::rules::answer::Answer::default(),
        root: Level::default(),
        files: parts
            .iter()
            .map(|part| Arc::clone(part.reader.file()))
            .collect(),
    };
    let mut compiler = Compiler {
        paths: HashSet::new(),
    };
    let mut taken = HashSet::new();
    for part in parts {
        check_text(&mut part.reader, "domain", &part.file.domain);
        let Part { reader, file } = part;
        reader.field("descriptors", |reader| {
            compiler.level(
                reader,
                name,
                &file.descriptors,
                &mut domain.root,
                &mut taken,
            );
        });
    }
    domain
}

/// Composite keys of one level: what the reference service keeps apart.
type Taken = HashSet<String>;

struct Compiler {
    /// Paths of rules that are given away.
    paths: HashSet<String>,
}

impl Compiler {
    fn level(
        &mut self,
        reader: &mut Reader,
        parent: &str,
        descriptors: &[RawDescriptor],
        level: &mut Level,
        taken: &mut Taken,
    ) {
        for (index, descriptor) in descriptors.iter().enumerate() {
            reader.item(index, |reader| {
                self.descriptor(reader, parent, descriptor, level, taken);
            });
        }
    }

    fn descriptor(
        &mut self,
        reader: &mut Reader,
        parent: &str,
        raw: &RawDescriptor,
        level: &mut Level,
        taken: &mut Taken,
    ) {
        check_text(reader, "key", &raw.key);
        check_text(reader, "value", &raw.value);
        let key = &*raw.key.value;
        let value = &*raw.value.value;
        if key.is_empty() {
            reader.error(raw.at, "the descriptor has no key", "add `key:`");
        }
        let composite = if value.is_empty() {
            key.to_owned()
        } else {
            format!("{key}_{value}")
        };
        if !key.is_empty() && !taken.insert(composite.clone()) {
            let what = format!("{} is there already at this level", quoted(&composite));
            reader.error(raw.at, what, "give each key and value once");
        }
        let path = format!("{parent}.{composite}");
        let share = &raw.share_threshold;
        if share.value && !composite.contains('*') {
            reader.field("share_threshold", |reader| {
                reader.error(
                    share.at,
                    "neither key nor value is a pattern",
                    "put a `*` in the value, or remove `share_threshold`",
                );
            });
        }
        let rule = self.rule(reader, &path, raw);
        let mut children = Level::default();
        reader.field("descriptors", |reader| {
            self.level(
                reader,
                &path,
                &raw.descriptors,
                &mut children,
                &mut Taken::new(),
            );
        });
        let node = Node {
            key: raw.key.value.clone(),
            value: raw.value.value.clone(),
            share_threshold: raw.share_threshold.value,
            value_to_metric: raw.value_to_metric.value,
            mask: None,
            rule: rule.map(Arc::new),
            children,
        };
        let child = match (key.contains('*'), value) {
            (true, _) => Child::Pattern(Matcher::Composite(Glob::new(&composite))),
            (false, "") => Child::Any,
            (false, value) if value.contains('*') => {
                Child::Pattern(Matcher::Value(Glob::new(value)))
            }
            (false, value) => Child::Exact(value.into()),
        };
        // A second node of the same name was reported above.
        let _ = level.insert(child, node);
    }

    fn rule(&mut self, reader: &mut Reader, path: &str, raw: &RawDescriptor) -> Option<Rule> {
        let rate_limit = raw.rate_limit.as_ref()?;
        let (limit, replaces) = reader.field("rate_limit", |reader| {
            compile_rate_limit(reader, rate_limit)
        });
        Some(Rule {
            id: 0,
            path: self.unique(path),
            limits: limit.into_iter().collect(),
            concurrency: None,
            unlimited: rate_limit.unlimited.value,
            replaces,
            shadow_mode: raw.shadow_mode.value,
            quota_mode: raw.quota_mode.value,
            detailed_metric: raw.detailed_metric.value,
            metadata: raw.metadata.clone(),
            scope: Scope::default(),
            source: Source {
                file: Arc::clone(reader.file()),
                line: raw.at.line,
                column: raw.at.column,
            },
        })
    }

    /// Two different rules can have one path, since nothing in it is escaped: the later one gets
    /// a number.
    fn unique(&mut self, path: &str) -> String {
        let mut unique = path.to_owned();
        let mut number = 2;
        while !self.paths.insert(unique.clone()) {
            unique = format!("{path}#{number}");
            number += 1;
        }
        unique
    }
}

/// The reference's single limit, and the names that it replaces.
fn compile_rate_limit(reader: &mut Reader, raw: &RawRateLimit) -> (Option<Limit>, Vec<Box<str>>) {
    let unit = Unit::parse(&raw.unit.value.to_uppercase());
    let unlimited = raw.unlimited.value;
    let at = if raw.unit.at.line > 0 {
        raw.unit.at
    } else {
        raw.at
    };
    reader.field("unit", |reader| match unit {
        Some(_) if unlimited => reader.error(
            at,
            "an unlimited rule has no unit",
            "remove `unit`, or `unlimited`",
        ),
        None if !unlimited && raw.unit.value.is_empty() => {
            reader.error(at, "the unit is missing", UNITS);
        }
        None if !unlimited => {
            let what = format!("{} is no unit", quoted(&raw.unit.value));
            reader.error(at, what, UNITS);
        }
        _ => {}
    });
    check_text(reader, "name", &raw.name);
    let replaces = reader.field("replaces", |reader| {
        let names = raw.replaces.iter().enumerate();
        names
            .map(|(index, name)| {
                reader.item(index, |reader| {
                    check_replaces(reader, name, &raw.name.value);
                });
                name.value.clone()
            })
            .collect()
    });
    let limit = unit.filter(|_| !unlimited).and_then(|unit| {
        let units = raw.requests_per_unit.value;
        let quota = Quota::per(units.into(), unit.span()).ok()?;
        Some(Limit {
            name: (!raw.name.value.is_empty()).then(|| Arc::from(&*raw.name.value)),
            algorithm: Algorithm::FixedWindow(Anchor::Clock),
            quota,
            shown: Shown {
                requests_per_unit: units,
                unit: Some(unit),
                unit_multiplier: 1,
            },
            count_denied: true,
            hold: false,
            cost_unit: CostUnit::Requests,
            discriminator: 0,
            version: 0,
            history: Arc::default(),
        })
    });
    (limit, replaces)
}

const UNITS: &str = "write second, minute, hour, day, week, month or year";

fn check_replaces(reader: &mut Reader, name: &Located<Box<str>>, own: &str) {
    check_text(reader, "name", name);
    if name.value.is_empty() {
        reader.error(
            name.at,
            "the name is missing",
            "name the limit that is replaced",
        );
    } else if &*name.value == own {
        reader.error(
            name.at,
            "a rule cannot replace itself",
            "name another limit",
        );
    }
}

/// Control characters would end up in logs, metrics and headers.
fn check_text(reader: &mut Reader, field: &str, text: &Located<Box<str>>) {
    if text.value.chars().any(char::is_control) {
        reader.field(field, |reader| {
            let what = format!("{} has a control character", quoted(&text.value));
            reader.error(text.at, what, "remove it");
        });
    }
}
