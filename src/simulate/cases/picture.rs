//! The chart of an experiment of cases: how each goes on over time, or how they compare.

use super::{CasesExperiment, Series, Tried};
use crate::{
    chart::figure::{Bar, Bars, Body, Figure, Ink, Layer, Measure, Panel, Panels},
    simulate::expect::{self, Bound, Column, Row, Unit},
};

const INKS: [Ink; 3] = [Ink::Blue, Ink::Green, Ink::Purple];

/// Draws what the table says.
pub(super) fn figure(
    experiment: &CasesExperiment,
    tried: &[Tried<'_>],
    notes: &[String],
) -> Figure {
    let goes_on = |tried: &&Tried<'_>| !tried.line(0).is_empty();
    let course = experiment.kind.course;
    let course = course.filter(|_| tried.iter().any(|tried| goes_on(&tried)));
    let (legend, body) = if let Some(series) = course {
        let lines = series.lines.iter().zip(INKS);
        let legend = lines.map(|(name, ink)| (ink, (*name).to_owned()));
        let columns = experiment.kind.columns;
        let tried = tried.iter().filter(goes_on);
        let panels = panels(columns, series, tried);
        (legend.collect(), Body::Panels(panels))
    } else {
        let mut expected = tried.iter().flat_map(|tried| &tried.case.expected);
        let marked = expected.any(|expected| matches!(expected.bound, Bound::Range(..)));
        let legend = marked.then(|| (Ink::Orange, "accepted".to_owned()));
        let bars = bars(experiment, tried);
        (legend.into_iter().collect(), Body::Bars(bars))
    };
    Figure {
        title: experiment.title.clone(),
        notes: notes.to_vec(),
        legend,
        body,
    }
}

fn panels<'a>(
    columns: &[Column],
    series: Series,
    tried: impl Iterator<Item = &'a Tried<'a>>,
) -> Panels {
    let indices = 0..series.lines.len();
    let all: Vec<(&Tried<'_>, Vec<Vec<f64>>)> = tried
        .map(|tried| {
            let lines = indices.clone().map(|index| tried.line(index));
            (tried, lines.collect())
        })
        .collect();
    let lines = || all.iter().flat_map(|(_, lines)| lines);
    let levels = all
        .iter()
        .filter_map(|(tried, _)| tried.case.level.as_ref());
    let heights = lines().flatten().chain(levels.map(|(level, _)| level));
    let most = heights.fold(1.0, |most: f64, height| most.max(*height));
    let points = lines().map(Vec::len).max().unwrap_or(1);
    let points = u32::try_from(points).unwrap_or(u32::MAX);
    let panel = |(tried, lines): &(&Tried<'_>, Vec<Vec<f64>>)| Panel {
        title: tried.case.name.clone(),
        note: note(columns, tried),
        y_label: series.unit.to_owned(),
        y_max: most * 1.1,
        layers: layers(tried, lines, series.step),
    };
    Panels {
        x_label: "seconds since the start".to_owned(),
        x: (0.0, f64::from(points) * series.step),
        list: all.iter().map(panel).collect(),
    }
}

fn layers(tried: &Tried<'_>, lines: &[Vec<f64>], step: f64) -> Vec<Layer> {
    let level = tried.case.level.iter();
    let level = level.map(|(level, what)| Layer::Level {
        ink: Ink::Orange,
        y: *level,
        label: what.clone(),
    });
    // What is measured over a time stands at its middle.
    let middle = |index: u32| (f64::from(index) + 0.5) * step;
    let line = |(line, ink): (&Vec<f64>, Ink)| Layer::Line {
        ink,
        points: (0_u32..).map(middle).zip(line.iter().copied()).collect(),
    };
    lines.iter().zip(INKS).map(line).chain(level).collect()
}

/// The first figures of a case.
fn note(columns: &[Column], tried: &Tried<'_>) -> String {
    let row = tried.row();
    let figures = columns.iter().enumerate().take(4);
    let figures = figures
        .map(|(index, column)| format!("{} {}", column.title(), column.show(row.mean(index))));
    figures.collect::<Vec<_>>().join(", ")
}

fn bars(experiment: &CasesExperiment, tried: &[Tried<'_>]) -> Bars {
    let rows: Vec<Row<'_>> = tried.iter().map(Tried::row).collect();
    let columns = expect::measured(experiment.kind.columns, &rows).into_iter();
    let measures = columns.map(|(index, column)| Measure {
        title: column.title(),
        bars: tried
            .iter()
            .map(|tried| bar(column, index, tried))
            .collect(),
        full: (column.unit == Unit::Share).then_some(1.0),
    });
    Bars {
        rows: tried.iter().map(|tried| tried.case.name.clone()).collect(),
        measures: measures.collect(),
    }
}

fn bar(column: Column, index: usize, tried: &Tried<'_>) -> Option<Bar> {
    let value = tried.row().mean(index)?;
    let mut expected = tried.case.expected.iter();
    let accepted = expected.find_map(|expected| match expected.bound {
        // An open end is where the axis begins, or where the bar ends.
        Bound::Range(least, most) if expected.column == index => {
            Some((least.max(0.0), if most.is_finite() { most } else { value }))
        }
        _ => None,
    });
    Some(Bar {
        value,
        label: column.show(Some(value)),
        accepted,
    })
}
