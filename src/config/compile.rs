//! From raw descriptors to a domain of [`crate::rules`].

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    config::{
        finding::quoted,
        matcher,
        quota::{quota, rate_of, unit_multiplier},
        raw::{RawDescriptor, RawFile, RawRateLimit},
        reader::{Located, Reader},
        units,
    },
    model::limit::{Algorithm, Anchor},
    rules::{
        Domain, OnStoreFailure, Stacking,
        answer::{Answer, Scope},
        concurrency::ConcurrencyRule,
        limit::Limit,
        tree::{Child, Level, Node, RequestLimit, Rule, Source},
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
        stacking: Stacking::default(),
        on_store_failure: OnStoreFailure::default(),
        spread: false,
        refuse_unknown: false,
        answer: Answer::default(),
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
    let mut settings = Settings::default();
    for Part { reader, file } in &mut *parts {
        check_text(reader, "domain", &file.domain);
        settings.take(reader, file, &mut domain);
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
    if domain.spread {
        for Part { reader, file } in parts {
            check_spread(reader, file, &domain);
        }
    }
    domain
}

/// What `spread` cannot be together with, and what it costs.
fn check_spread(reader: &mut Reader, file: &RawFile, domain: &Domain) {
    let Some(Located { value: true, at }) = file.spread else {
        return;
    };
    reader.field("spread", |reader| {
        if domain.stacking == Stacking::AllOrNothing {
            reader.error(
                at,
                "limits in several slots of a cluster cannot be taken all or none",
                "remove `spread`, or `stacking: all_or_nothing`",
            );
        } else if let Some(rule) = domain.rules_in_flight().first() {
            let what = format!(
                "limits on work in flight, such as {}, are kept in one slot",
                rule.path
            );
            reader.error(at, what, "remove `spread`, or move them to another domain");
        } else {
            reader.warn(
                at,
                "in a cluster, a request with several limits is decided slot by slot: one of them \
                 may count it although another refuses it, or does not answer",
                "keep it only for a domain that is too much for one slot",
            );
        }
    });
}

/// Which file has set what of the domain.
#[derive(Default)]
struct Settings {
    set: HashMap<&'static str, Arc<str>>,
}

impl Settings {
    fn take(&mut self, reader: &mut Reader, file: &mut RawFile, domain: &mut Domain) {
        let RawFile {
            stacking,
            on_store_failure,
            spread,
            refuse_unknown,
            answer,
            ..
        } = file;
        self.one(reader, "stacking", stacking.take(), &mut domain.stacking);
        let failure = on_store_failure.take();
        self.one(
            reader,
            "on_store_failure",
            failure,
            &mut domain.on_store_failure,
        );
        self.one(reader, "spread", spread.clone(), &mut domain.spread);
        let unknown = refuse_unknown.take();
        self.one(reader, "unknown_key", unknown, &mut domain.refuse_unknown);
        self.one(reader, "answer", answer.take(), &mut domain.answer);
    }

    /// Of several files of a domain, one may say it.
    fn one<T>(
        &mut self,
        reader: &mut Reader,
        field: &'static str,
        value: Option<Located<T>>,
        slot: &mut T,
    ) {
        let Some(Located { value, at }) = value else {
            return;
        };
        match self.set.insert(field, Arc::clone(reader.file())) {
            None => *slot = value,
            Some(other) => reader.field(field, |reader| {
                let what = format!("{other} says it already for this domain");
                reader.error(at, what, "keep one of the two");
            }),
        }
    }
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
        if share.value && !matcher::is_pattern(key, value) {
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
            mask: raw.mask.as_ref().map(|mask| mask.value),
            rule: rule.map(Arc::new),
            children,
        };
        let Some(child) = matcher::child(reader, key, &raw.value) else {
            return;
        };
        if let Some(mask) = &raw.mask
            && (matches!(child, Child::Exact(_)) || raw.share_threshold.value)
        {
            reader.field("mask", |reader| {
                let what = "every request here has one counter anyway";
                reader.error(
                    mask.at,
                    what,
                    "remove `mask`, or the exact value or `share_threshold`",
                );
            });
        }
        // A second node of the same name was reported above.
        let _ = level.insert(child, node);
    }

    fn rule(&mut self, reader: &mut Reader, path: &str, raw: &RawDescriptor) -> Option<Rule> {
        let mut rule = Rule {
            unlimited: raw
                .rate_limit
                .as_ref()
                .is_some_and(|limit| limit.unlimited.value),
            shadow_mode: raw.shadow_mode.value,
            quota_mode: raw.quota_mode.value,
            detailed_metric: raw.detailed_metric.value,
            metadata: raw.metadata.clone(),
            scope: raw
                .scope
                .as_ref()
                .map(|scope| scope.value)
                .unwrap_or_default(),
            unadvertised: raw.advertise.as_ref().is_some_and(|on| !on.value),
            request_limit: raw
                .request_limit
                .as_ref()
                .map(|limit| limit.value)
                .unwrap_or_default(),
            source: Source {
                file: Arc::clone(reader.file()),
                line: raw.at.line,
                column: raw.at.column,
            },
            ..Rule::default()
        };
        if let Some(rate_limit) = &raw.rate_limit {
            let (limit, replaces) = reader.field("rate_limit", |reader| {
                compile_rate_limit(reader, rate_limit)
            });
            rule.limits.extend(limit);
            rule.replaces = replaces;
        }
        if let Some(limits) = &raw.limits {
            if raw.rate_limit.is_some() {
                reader.field("limits", |reader| {
                    let what = "a rule has either `rate_limit` or `limits`";
                    reader.error(limits.at, what, "move everything into `limits`");
                });
            }
            rule.limits.extend(limits.limits.iter().cloned());
            rule.replaces.extend(limits.replaces.iter().cloned());
        }
        if raw.rate_limit.is_none() && raw.limits.is_none() && raw.concurrency.is_none() {
            let fields = [
                ("scope", raw.scope.as_ref().map(|field| field.at)),
                ("advertise", raw.advertise.as_ref().map(|field| field.at)),
                (
                    "request_limit",
                    raw.request_limit.as_ref().map(|field| field.at),
                ),
            ];
            for (name, at) in fields {
                if let Some(at) = at {
                    reader.field(name, |reader| {
                        reader.error(at, "there is no limit here", "move it to the limit");
                    });
                }
            }
            return None;
        }
        if let Some(Located { at, value }) = raw.request_limit
            && value == RequestLimit::Numbers
            && (rule.limits.len() != 1 || raw.concurrency.is_some())
        {
            reader.field("request_limit", |reader| {
                reader.error(
                    at,
                    "numbers of a request can stand for those of one limit only",
                    "write a rule with a single limit",
                );
            });
        }
        rule.path = self.unique(path);
        rule.concurrency = raw.concurrency.clone().map(|concurrency| {
            Arc::new(ConcurrencyRule {
                path: rule.path.as_str().into(),
                shared: rule.scope == Scope::Shared,
                shadow: concurrency.shadow || rule.shadow_mode,
                ..concurrency
            })
        });
        Some(rule)
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
    let unit = units::unit(&raw.unit.value);
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
            reader.error(at, "the unit is missing", units::UNIT_ADVICE);
        }
        None if !unlimited => {
            let what = format!("{} is no unit", quoted(&raw.unit.value));
            reader.error(at, what, units::UNIT_ADVICE);
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
    let times = reader.field("unit_multiplier", |reader| {
        unit_multiplier(reader, raw.unit_multiplier.as_ref())
    });
    let limit = unit.filter(|_| !unlimited).and_then(|unit| {
        let units = raw.requests_per_unit.value.into();
        let (rate, shown) = rate_of(reader, raw.at, units, unit, times?)?;
        Some(Limit {
            name: (!raw.name.value.is_empty()).then(|| Arc::from(&*raw.name.value)),
            shown,
            ..Limit::new(
                Algorithm::FixedWindow(Anchor::Clock),
                quota(reader, raw.at, rate, rate.units)?,
            )
        })
    });
    (limit, replaces)
}

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

fn check_text(reader: &mut Reader, field: &str, text: &Located<Box<str>>) {
    reader.field(field, |reader| reader.check_text(text));
}
