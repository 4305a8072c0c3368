//! Where the value of a setting comes from: flag, else `PORTEIRO_…`, else the reference's
//! variable, else the default. What is wrong is collected, not returned: people want to mend it
//! all at once.

use std::{collections::BTreeMap, fmt::Display, ops::RangeInclusive};

use clap::ArgMatches;

use super::knobs::{KNOBS, UNSUPPORTED, asks_for_nothing};

/// All texts that were given.
pub(super) struct Source<'a> {
    flags: BTreeMap<&'static str, String>,
    environment: &'a BTreeMap<String, String>,
    problems: Vec<String>,
}

impl<'a> Source<'a> {
    pub(super) fn new(flags: &ArgMatches, environment: &'a BTreeMap<String, String>) -> Self {
        let given = KNOBS.iter().filter_map(|knob| {
            let text = flags.get_one::<String>(knob.name)?;
            Some((knob.name, text.clone()))
        });
        Self {
            flags: given.collect(),
            environment,
            problems: Vec::new(),
        }
    }

    /// A variable of the environment; an empty one counts as absent.
    pub(super) fn variable(&self, name: &str) -> Option<&'a str> {
        let text = self.environment.get(name)?;
        (!text.is_empty()).then_some(text)
    }

    /// The text of a setting and the name it was given under, our own names only.
    pub(super) fn ours(&self, name: &'static str) -> Option<(String, String)> {
        if let Some(text) = self.flags.get(name) {
            return Some((format!("--{name}"), text.clone()));
        }
        let knob = KNOBS.iter().find(|knob| knob.name == name)?;
        let variable = knob.variable();
        let text = self.variable(&variable)?.to_owned();
        Some((variable, text))
    }

    /// Reads a setting by our names only.
    pub(super) fn take_ours<T, E: Display>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let (given_as, text) = self.ours(name)?;
        self.read(&given_as, &text, read)
    }

    /// Reads a setting, by our names or by the reference's one variable for it.
    pub(super) fn take<T, E: Display>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let given = self.ours(name).or_else(|| {
            let knob = KNOBS.iter().find(|knob| knob.name == name)?;
            let mut reference = knob.reference.iter();
            reference.find_map(|name| Some(((*name).to_owned(), self.variable(name)?.to_owned())))
        });
        let (given_as, text) = given?;
        self.read(&given_as, &text, read)
    }

    /// Reads a variable of the reference that has no setting of its own.
    pub(super) fn take_variable<T, E: Display>(
        &mut self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.variable(name)?;
        self.read(name, text, read)
    }

    fn read<T, E: Display>(
        &mut self,
        given_as: &str,
        text: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        match read(text) {
            Ok(value) => Some(value),
            Err(want) => {
                self.problem(if HIDDEN.contains(&given_as) {
                    format!("{given_as}: {want}")
                } else {
                    format!("{given_as}={text:?}: {want}")
                });
                None
            }
        }
    }

    /// Adds to what is wrong.
    pub(super) fn problem(&mut self, what: String) {
        self.problems.push(what);
    }

    /// How many things were wrong so far.
    pub(super) fn problems(&self) -> usize {
        self.problems.len()
    }

    /// Everything that was wrong.
    pub(super) fn into_problems(self) -> Vec<String> {
        self.problems
    }

    /// One line each for what was set and does nothing.
    pub(super) fn warnings(&self) -> Vec<String> {
        let unsupported: Vec<&str> = self
            .environment
            .iter()
            .filter(|(name, value)| {
                let known = UNSUPPORTED.contains(&name.as_str())
                    || name.starts_with("DOG_STATSD_MOGRIFIER_");
                known && !asks_for_nothing(name, value)
            })
            .map(|(name, _)| name.as_str())
            .collect();
        let mut warnings = Vec::new();
        if !unsupported.is_empty() {
            warnings.push(format!(
                "set, but not supported and without effect: {}",
                unsupported.join(", ")
            ));
        }
        warnings.extend(self.environment.keys().filter_map(|name| misspelt(name)));
        warnings
    }
}

/// Settings whose texts may hold a password or a token: not shown, however wrong they are. Those of
/// the store and of files with secrets say what is wrong themselves.
const HIDDEN: &[&str] = &[
    "--otlp",
    "PORTEIRO_OTLP",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "--xds-headers",
    "PORTEIRO_XDS_HEADERS",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
];

/// How alike two names must be to be taken for each other; 1 is equal.
const ALIKE: RangeInclusive<f64> = 0.85..=1.0;

/// A variable that is nearly one of ours. Others that begin like ours are somebody else's:
/// Kubernetes sets `PORTEIRO_SERVICE_HOST` and more for a service of our name.
fn misspelt(name: &str) -> Option<String> {
    let rest = name.strip_prefix("PORTEIRO_")?;
    if KNOBS.iter().any(|knob| knob.variable() == name) {
        return None;
    }
    let near = KNOBS
        .iter()
        .map(|knob| (strsim::jaro_winkler(&knob.variable()[9..], rest), knob))
        .filter(|(likeness, _)| ALIKE.contains(likeness))
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    let (_, knob) = near?;
    Some(format!(
        "{name} is no setting; did you mean {}?",
        knob.variable()
    ))
}
