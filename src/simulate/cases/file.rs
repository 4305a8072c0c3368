//! The file of an experiment of cases.

use super::{Case, CasesExperiment, Kind, Outcome, Try};
use crate::{
    algorithm::concurrency::real::real,
    config::document::{Node, Reader},
    simulate::{
        arrivals::{MOST, TooMany},
        expect::{self, Expected},
        experiment::Experiment,
    },
};

const NAMES: [&str; 6] = ["kind", "title", "seed", "runs", "quick", "cases"];

/// Most tries of each case.
const MOST_RUNS: u64 = 10_000;

/// What cases of every kind have.
pub(super) struct Common {
    kind: &'static Kind,
    name: Option<String>,
    quick: bool,
    level: Option<(f64, String)>,
    expected: Vec<Expected>,
    run: Option<Try>,
}

/// Reads it. What is read is of use only when the reader has no error.
pub(crate) fn read(kind: &'static Kind, reader: &mut Reader, root: &Node) -> Box<dyn Experiment> {
    let mut experiment = CasesExperiment {
        kind,
        title: kind.title.to_owned(),
        seed: 1,
        runs: 1,
        quick: 1,
        cases: Vec::new(),
    };
    reader.own_fields(root, &NAMES, &mut |reader, name, value| match name {
        "title" => experiment.title = reader.words(value).unwrap_or_default().value.into(),
        "seed" => count(reader, value, &mut experiment.seed),
        "runs" => experiment.runs = runs(reader, value),
        "quick" => experiment.quick = runs(reader, value),
        "cases" => {
            for (index, item) in reader.list(value).iter().enumerate() {
                let case = reader.item(index, |reader| case(kind, reader, item, index));
                if let Some(case) = case {
                    let mut others = experiment.cases.iter();
                    if others.any(|other| other.name == case.name) {
                        let what = format!("there is a case {:?} already", case.name);
                        reader.error(item.at, what, "give each a name of its own");
                    }
                    experiment.cases.push(case);
                }
            }
        }
        _ => {}
    });
    if experiment.cases.is_empty() {
        reader.error(
            root.at,
            "there is nothing to try",
            "add `cases:` with at least one",
        );
    }
    for case in &experiment.cases {
        // A quick look has no figures of the cases that it leaves out.
        let others = experiment.cases.iter();
        let others = others.filter(|other| other.quick || !case.quick);
        let names: Vec<&str> = others.map(|other| other.name.as_str()).collect();
        expect::check(reader, &case.expected, &names);
    }
    Box::new(experiment)
}

fn runs(reader: &mut Reader, node: &Node) -> u64 {
    let runs = reader.count(node).map_or(1, |runs| runs.value);
    if runs == 0 || runs > MOST_RUNS {
        reader.error(
            node.at,
            "too few or too many",
            format!("write 1 to {MOST_RUNS}"),
        );
    }
    runs
}

fn case(kind: &'static Kind, reader: &mut Reader, node: &Node, index: usize) -> Option<Case> {
    let mut common = Common {
        kind,
        name: None,
        quick: true,
        level: None,
        expected: Vec::new(),
        run: None,
    };
    (kind.case)(reader, node, &mut common);
    Some(Case {
        name: common.name.unwrap_or_else(|| format!("case {}", index + 1)),
        quick: common.quick,
        level: common.level,
        run: common.run?,
        expected: common.expected,
    })
}

impl Common {
    /// Reads a case: `read` is called for each field that is among `names`.
    pub(super) fn fields(
        &mut self,
        reader: &mut Reader,
        node: &Node,
        names: &[&str],
        read: &mut dyn FnMut(&mut Reader, &str, &Node),
    ) {
        let names = [&["name", "quick", "expect", "expect_each"], names].concat();
        let columns = self.kind.columns;
        reader.own_fields(node, &names, &mut |reader, name, value| match name {
            "name" => self.name = reader.words(value).map(|name| name.value.into()),
            "quick" => self.quick = reader.switch(value).is_none_or(|quick| quick.value),
            "expect" => expect::read(reader, value, columns, false, &mut self.expected),
            "expect_each" => expect::read(reader, value, columns, true, &mut self.expected),
            _ => read(reader, name, value),
        });
    }

    /// How the case is tried.
    pub(super) fn run(&mut self, run: impl Fn(u64) -> Outcome + 'static) {
        self.run = Some(Box::new(run));
    }

    /// What the course of the case is to be compared with.
    pub(super) fn level(&mut self, level: f64, what: &str) {
        self.level = Some((level, what.to_owned()));
    }
}

/// A rate per second, as `200/s`; not zero.
pub(super) fn per_second(reader: &mut Reader, node: &Node, slot: &mut f64) {
    if let Some(rate) = reader.rate(node) {
        *slot = real(rate.value.units) / rate.value.period.span.as_secs_f64();
        if rate.value.units == 0 {
            reader.error(node.at, "nobody comes", "write a higher rate");
        }
    }
}

/// A time in seconds, as `250ms`; not zero, at most [`LONGEST`].
pub(super) fn seconds(reader: &mut Reader, node: &Node, slot: &mut f64) {
    if let Some(span) = reader.span(node) {
        *slot = span.as_secs_f64();
        if span.is_zero() || *slot > LONGEST {
            let advice = format!("write a time of at most {LONGEST} s");
            reader.error(node.at, "no time at all, or too long", advice);
        }
    }
}

/// Refuses a case in which so many requests come, if that is more than memory is for.
pub(super) fn bounded(reader: &mut Reader, node: &Node, requests: f64) {
    if requests > real(MOST as u64) {
        reader.error(
            node.at,
            TooMany.to_string(),
            "let fewer come, or for less long",
        );
    }
}

/// More virtual time than anybody waits for; in seconds.
const LONGEST: f64 = 1e6;

/// One of a few words.
pub(super) fn word<T: Copy>(reader: &mut Reader, node: &Node, choices: &[(&str, T)], slot: &mut T) {
    if let Some(choice) = reader.choice(node, choices) {
        *slot = choice.value;
    }
}

/// A whole number.
pub(super) fn count(reader: &mut Reader, node: &Node, slot: &mut u64) {
    if let Some(count) = reader.count(node) {
        *slot = count.value;
    }
}
