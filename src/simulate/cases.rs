//! Experiments of cases: each is tried several times, with other seeds, and its mean figures are
//! held against the numbers that it is expected to give.

mod accuracy;
mod adaptive;
mod classes;
mod clients;
mod collapse;
mod counters;
pub(crate) mod file;
mod gate;
mod heavy;
mod hints;
mod leaks;
mod neighbours;
mod picture;
mod restart;
mod slowdown;
mod stacked;

use std::fmt;

use crate::{
    algorithm::concurrency::real::real,
    chart::table::{Align, Table},
    config::document::{Node, Reader},
    simulate::{
        expect::{self, Column, Expected, Row, Unit},
        experiment::Experiment,
        report::Report,
    },
};

/// Every kind, by its name in `kind:`.
pub(crate) const KINDS: [(&str, &Kind); 14] = [
    ("gate", &gate::KIND),
    ("collapse", &collapse::KIND),
    ("slowdown", &slowdown::KIND),
    ("neighbours", &neighbours::KIND),
    ("leaks", &leaks::KIND),
    ("stacked", &stacked::KIND),
    ("classes", &classes::KIND),
    ("adaptive", &adaptive::KIND),
    ("hints", &hints::KIND),
    ("accuracy", &accuracy::KIND),
    ("restart", &restart::KIND),
    ("heavy", &heavy::KIND),
    ("counters", &counters::KIND),
    ("clients", &clients::KIND),
];

/// A scenario as experiment files see it.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Stands above the results of a file without a title.
    title: &'static str,
    /// What is measured.
    columns: &'static [Column],
    /// How it goes on over time; none when time is not what matters.
    course: Option<Series>,
    /// Reads a case, with the help of [`file::Common`] for what all kinds have.
    case: fn(&mut Reader, &Node, &mut file::Common),
}

/// What is measured again and again while a case is tried.
#[derive(Clone, Copy, Debug)]
struct Series {
    /// What each line shows.
    lines: &'static [&'static str],
    /// What all of them count.
    unit: &'static str,
    /// Seconds from one measurement to the next.
    step: f64,
}

/// Tries a case with a seed.
type Try = Box<dyn Fn(u64) -> Outcome>;

/// What one try gave.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// One for each column; none when there is no such figure, as a wait without anybody waiting.
    figures: Vec<Option<f64>>,
    /// One for each line of the kind's series; empty when this case has none.
    lines: Vec<Vec<f64>>,
}

/// Cases and how often each is tried.
#[derive(Debug)]
pub(crate) struct CasesExperiment {
    kind: &'static Kind,
    title: String,
    /// First seed.
    seed: u64,
    /// How many seeds.
    runs: u64,
    /// How many for a first look.
    quick: u64,
    cases: Vec<Case>,
}

/// One case.
struct Case {
    name: String,
    /// Part of a first look.
    quick: bool,
    /// A level to compare its course with, and what it is.
    level: Option<(f64, String)>,
    run: Try,
    expected: Vec<Expected>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

/// A case and what its tries gave.
struct Tried<'a> {
    case: &'a Case,
    outcomes: Vec<Outcome>,
}

impl Experiment for CasesExperiment {
    fn run(&self) -> Report {
        let seeds = self.seed..self.seed.saturating_add(self.runs);
        let tried: Vec<Tried<'_>> = self
            .cases
            .iter()
            .map(|case| Tried {
                case,
                outcomes: seeds.clone().map(|seed| (case.run)(seed)).collect(),
            })
            .collect();
        let notes = vec![match self.runs {
            1 => format!("one try of each, seed {}", self.seed),
            runs => format!("means of {runs} tries of each, seeds from {}", self.seed),
        }];
        let rows: Vec<Row<'_>> = tried.iter().map(Tried::row).collect();
        let verdicts = expect::verdicts(self.kind.columns, &rows);
        let mut tables = vec![self.table(&rows)];
        tables.extend(verdicts.table_if_any());
        Report {
            title: self.title.clone(),
            tables,
            failures: verdicts.failures,
            figure: picture::figure(self, &tried, &notes),
            notes,
        }
    }

    fn shorten(&mut self) {
        self.runs = self.quick;
        self.cases.retain(|case| case.quick);
    }
}

impl CasesExperiment {
    fn table(&self, rows: &[Row<'_>]) -> Table {
        let columns = expect::measured(self.kind.columns, rows);
        let titles: Vec<String> = columns.iter().map(|(_, column)| column.title()).collect();
        let heads = titles.iter().map(|title| (title.as_str(), Align::Right));
        let heads: Vec<_> = [("case", Align::Left)].into_iter().chain(heads).collect();
        let mut table = Table::new(&heads);
        for row in rows {
            let figures = columns.iter();
            let figures = figures.map(|(index, column)| column.show(row.mean(*index)));
            table.row([row.name.to_owned()].into_iter().chain(figures));
        }
        table
    }
}

impl Tried<'_> {
    fn row(&self) -> Row<'_> {
        Row {
            name: &self.case.name,
            expected: &self.case.expected,
            tries: self
                .outcomes
                .iter()
                .map(|outcome| &*outcome.figures)
                .collect(),
        }
    }

    /// A line, point by point the mean of all tries.
    fn line(&self, index: usize) -> Vec<f64> {
        let outcomes = self.outcomes.iter();
        let lines: Vec<&Vec<f64>> = outcomes.filter_map(|one| one.lines.get(index)).collect();
        let points = lines.iter().map(|line| line.len()).max().unwrap_or(0);
        let at = |point: usize| {
            let values = lines.iter().filter_map(|line| line.get(point).copied());
            expect::mean(values).unwrap_or(0.0)
        };
        (0..points).map(at).collect()
    }
}

impl Outcome {
    fn of<const N: usize>(figures: [Option<f64>; N]) -> Self {
        Self {
            figures: figures.to_vec(),
            lines: Vec::new(),
        }
    }

    /// With one more line.
    fn and(mut self, counts: &[u64]) -> Self {
        self.lines.push(counts.iter().copied().map(real).collect());
        self
    }
}
