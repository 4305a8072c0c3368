//! `kind: limits`: the same requests under several limits.

pub(crate) mod file;
mod picture;

use crate::{
    algorithm::concurrency::real::real,
    chart::table::{Align, Table},
    model::{
        limit::Algorithm,
        time::{Span, Timestamp},
    },
    rules::limit::Limit,
    simulate::{
        arrivals::Arrival,
        expect::{self, Column, Expected, Row, Unit},
        experiment::Experiment,
        report::{Report, short},
        run::{self, Course, Fullest, Passed, Spread, fullest},
    },
};

/// What is tried.
#[derive(Clone, Debug)]
pub struct LimitsExperiment {
    /// Stands above the results.
    pub title: String,
    /// In the order of time.
    pub arrivals: Vec<Arrival>,
    /// Each has a name.
    pub limits: Vec<Limit>,
    /// Length of the windows in which admissions are counted; not zero.
    pub window: Span,
    /// Date of the start: windows of the clock and the calendar depend on it.
    pub start: Timestamp,
    /// Width of a bar of the chart; none for one that suits.
    pub bar: Option<Span>,
    /// What is expected of each limit, in their order.
    pub(crate) expected: Vec<Vec<Expected>>,
}

/// What is measured of each limit, as `expect:` names it.
const COLUMNS: [Column; 6] = [
    Column::new("admitted", Unit::Number),
    Column::new("refused", Unit::Number),
    Column::new("most", Unit::Number),
    Column::new("never", Unit::Number),
    Column::new("wait_mean", Unit::Seconds),
    Column::new("wait_max", Unit::Seconds),
];

/// What a limit is called.
fn name(limit: &Limit) -> &str {
    let name = limit.name.as_deref();
    name.unwrap_or(limit.algorithm.name())
}

/// One limit and what it did.
struct Trial<'a> {
    limit: &'a Limit,
    course: Course,
    passed: Vec<Passed>,
    fullest: Fullest,
}

impl Experiment for LimitsExperiment {
    fn run(&self) -> Report {
        let results: Vec<Trial<'_>> = self
            .limits
            .iter()
            .map(|limit| {
                let course = run::run(limit, &self.arrivals, self.start);
                let passed = course.passed(&self.arrivals);
                Trial {
                    limit,
                    fullest: fullest(&passed, self.window),
                    course,
                    passed,
                }
            })
            .collect();
        let notes = vec![self.offered()];
        let figures: Vec<_> = results.iter().map(Trial::figures).collect();
        let rows = results.iter().zip(&figures).zip(&self.expected);
        let rows: Vec<Row<'_>> = rows
            .map(|((result, figures), expected)| Row {
                name: name(result.limit),
                expected,
                tries: vec![figures],
            })
            .collect();
        let verdicts = expect::verdicts(&COLUMNS, &rows);
        let mut tables = vec![self.table(&results)];
        tables.extend(verdicts.table_if_any());
        Report {
            title: self.title.clone(),
            tables,
            failures: verdicts.failures,
            figure: picture::figure(self, &results, &notes),
            notes,
        }
    }
}

impl LimitsExperiment {
    /// How much comes, and in what time.
    fn offered(&self) -> String {
        let count = self.arrivals.len();
        let between = match (self.arrivals.first(), self.arrivals.last()) {
            (Some(first), Some(last)) => {
                format!(" between {} and {}", short(first.at), short(last.at))
            }
            _ => String::new(),
        };
        let units = if self.costs_differ_from_one() {
            format!(
                ", {} units",
                self.arrivals
                    .iter()
                    .map(|a| u128::from(a.cost))
                    .sum::<u128>()
            )
        } else {
            String::new()
        };
        format!(
            "{count} requests{units}{between}; counted over any {}",
            short(self.window)
        )
    }

    fn costs_differ_from_one(&self) -> bool {
        self.arrivals.iter().any(|arrival| arrival.cost != 1)
    }

    fn table(&self, results: &[Trial<'_>]) -> Table {
        let most = format!("most in {}", short(self.window));
        let mut columns = vec![
            ("name", Align::Left),
            ("limit", Align::Left),
            ("offered", Align::Right),
            ("admitted", Align::Right),
            ("refused", Align::Right),
            (most.as_str(), Align::Right),
        ];
        let shapes = results.iter().any(Trial::is_shaper);
        if shapes {
            let waits = ["wait mean", "wait p50", "wait p99", "wait max"];
            columns.extend(waits.map(|head| (head, Align::Right)));
        }
        let hints = ["retry min", "retry mean", "retry max", "never"];
        columns.extend(hints.map(|head| (head, Align::Right)));
        let mut table = Table::new(&columns);
        for result in results {
            table.row(result.row(shapes));
        }
        table
    }
}

impl Trial<'_> {
    fn name(&self) -> &str {
        name(self.limit)
    }

    /// One for each of [`COLUMNS`].
    fn figures(&self) -> [Option<f64>; 6] {
        let count = |count: usize| Some(real(count as u64));
        let (refused, never) = self.course.refused();
        let waits = self.course.waits();
        let wait = |wait: Span| self.is_shaper().then(|| wait.as_secs_f64());
        [
            count(self.passed.len()),
            count(refused),
            Some(real(self.fullest.units)),
            count(never),
            wait(waits.mean),
            wait(waits.max),
        ]
    }

    fn is_shaper(&self) -> bool {
        self.limit.algorithm == Algorithm::LeakyQueue
    }

    fn row(&self, shapes: bool) -> Vec<String> {
        let Self { limit, course, .. } = self;
        let (refused, never) = course.refused();
        let mut row = vec![
            self.name().to_owned(),
            limit.to_string(),
            course.fates().len().to_string(),
            self.passed.len().to_string(),
            refused.to_string(),
            self.fullest.units.to_string(),
        ];
        if shapes {
            let waits = course.waits();
            let of = if self.is_shaper() {
                waits
            } else {
                Spread::default()
            };
            row.extend(cells(of, [of.mean, of.p50, of.p99, of.max]));
        }
        let hints = course.hints();
        row.extend(cells(hints, [hints.min, hints.mean, hints.max]));
        row.push(never.to_string());
        row
    }
}

fn cells<const N: usize>(of: Spread, times: [Span; N]) -> [String; N] {
    times.map(|time| match of.count {
        0 => "-".to_owned(),
        _ => short(time),
    })
}
