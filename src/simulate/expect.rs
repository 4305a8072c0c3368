//! What an experiment expects of its figures: `expect: {admitted: 115 ± 1.5, peak: at most 30}`.

mod bound;

pub(crate) use self::bound::Bound;
use crate::{
    chart::table::{Align, Table},
    config::{
        Position,
        document::{Node, Reader},
    },
    model::time::Span,
    simulate::report::short,
};

/// Something that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// As `expect:` names it.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
}

/// How a figure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// As a number.
    Number,
    /// As a percentage.
    Share,
    /// As a time.
    Seconds,
}

/// An expectation of one figure.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// Index of the column.
    pub(crate) column: usize,
    pub(crate) bound: Bound,
    /// Of every single try, not only of their mean.
    pub(crate) each: bool,
    /// As the file says it.
    text: Box<str>,
    at: Position,
}

/// What was measured of one case, and what was expected of it.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) expected: &'a [Expected],
    /// For each try one figure for each column; none where there is no such figure, as a wait
    /// without anybody waiting.
    pub(crate) tries: Vec<&'a [Option<f64>]>,
}

/// Figures beside what was expected of them.
#[derive(Clone, Debug)]
pub(crate) struct Verdicts {
    /// One row for each expectation.
    pub(crate) table: Table,
    /// What was missed, one sentence each.
    pub(crate) failures: Vec<String>,
}

impl Column {
    pub(crate) const fn new(name: &'static str, unit: Unit) -> Self {
        Self { name, unit }
    }

    pub(crate) fn title(self) -> String {
        self.name.replace('_', " ")
    }

    pub(crate) fn show(self, figure: Option<f64>) -> String {
        let trimmed = |text: String| {
            let text = text.trim_end_matches('0').trim_end_matches('.');
            if text == "-0" { "0" } else { text }.to_owned()
        };
        match (figure, self.unit) {
            (None, _) => "-".to_owned(),
            (Some(number), Unit::Number) => trimmed(format!("{number:.2}")),
            (Some(share), Unit::Share) => trimmed(format!("{:.2}", share * 100.0)) + "%",
            (Some(seconds), Unit::Seconds) => short(Span::from_secs_f64(seconds)),
        }
    }
}

/// Reads `figure: bound` or `figure: [bound, bound]` for figures among `columns`.
pub(crate) fn read(
    reader: &mut Reader,
    node: &Node,
    columns: &[Column],
    each: bool,
    into: &mut Vec<Expected>,
) {
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    reader.own_fields(node, &names, &mut |reader, name, value| {
        let Some(column) = names.iter().position(|column| *column == name) else {
            return;
        };
        let mut add = |reader: &mut Reader, node: &Node| {
            let Some(text) = reader.words(node) else {
                return;
            };
            match bound::parse(&text.value) {
                Some(bound) => into.push(Expected {
                    column,
                    bound,
                    each,
                    text: text.value,
                    at: node.at,
                }),
                None => reader.error(node.at, "this cannot be expected", bound::ADVICE),
            }
        };
        if value.is_list() {
            for (index, item) in reader.list(value).iter().enumerate() {
                reader.item(index, |reader| add(reader, item));
            }
        } else {
            add(reader, value);
        }
    });
}

/// Reports comparisons with cases that are not among `names`.
pub(crate) fn check(reader: &mut Reader, expected: &[Expected], names: &[&str]) {
    for expected in expected {
        if let Some(other) = expected.bound.other()
            && !names.contains(&other)
        {
            let what = format!("there is no case {other:?} to compare with");
            let advice = "name one that is tried whenever this one is";
            reader.error(expected.at, what, advice);
        }
    }
}

/// The columns, with their index, that any row has a figure in.
pub(crate) fn measured(columns: &[Column], rows: &[Row<'_>]) -> Vec<(usize, Column)> {
    let columns = columns.iter().copied().enumerate();
    let measured = |index: usize| rows.iter().any(|row| row.mean(index).is_some());
    columns.filter(|(index, _)| measured(*index)).collect()
}

/// Holds every figure against what was expected of it.
pub(crate) fn verdicts(columns: &[Column], rows: &[Row<'_>]) -> Verdicts {
    let mut table = Table::new(&[
        ("expected of", Align::Left),
        ("figure", Align::Left),
        ("measured", Align::Right),
        ("accepted", Align::Left),
        ("", Align::Left),
    ]);
    let mut failures = Vec::new();
    for row in rows {
        for expected in row.expected {
            let Some(column) = columns.get(expected.column) else {
                continue;
            };
            let other = expected.bound.other().and_then(|other| {
                let other = rows.iter().find(|row| row.name == other)?;
                other.mean(expected.column)
            });
            let figures: Vec<Option<f64>> = if expected.each {
                row.figures(expected.column).collect()
            } else {
                vec![row.mean(expected.column)]
            };
            let fits = figures
                .iter()
                .all(|figure| expected.bound.holds(*figure, other));
            let measured = shown(*column, &figures);
            let accepted = if expected.each {
                format!("each {}", expected.text)
            } else {
                expected.text.to_string()
            };
            if !fits {
                failures.push(format!(
                    "{}: {} is {measured}, accepted: {accepted}",
                    row.name,
                    column.title()
                ));
            }
            table.row([
                row.name.to_owned(),
                column.title(),
                measured,
                accepted,
                if fits { "ok" } else { "MISSED" }.to_owned(),
            ]);
        }
    }
    Verdicts { table, failures }
}

/// One figure, or from where to where several of them go.
fn shown(column: Column, figures: &[Option<f64>]) -> String {
    let numbers = || figures.iter().flatten().copied();
    let least = numbers().reduce(f64::min);
    let most = numbers().reduce(f64::max);
    let (least, most) = (column.show(least), column.show(most));
    if least == most {
        least
    } else {
        format!("{least} to {most}")
    }
}

impl Verdicts {
    /// The table, if anything was expected.
    pub(crate) fn table_if_any(&self) -> Option<Table> {
        (!self.table.is_empty()).then(|| self.table.clone())
    }
}

impl Row<'_> {
    /// One figure of all tries.
    fn figures(&self, column: usize) -> impl Iterator<Item = Option<f64>> {
        let tries = self.tries.iter();
        tries.map(move |figures| figures.get(column).copied().flatten())
    }

    /// The mean of those tries that have such a figure.
    pub(crate) fn mean(&self, column: usize) -> Option<f64> {
        mean(self.figures(column).flatten())
    }
}

/// None of nothing.
pub(crate) fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), number| {
        (sum + number, count + 1.0)
    });
    (count > 0.0).then(|| sum / count)
}
