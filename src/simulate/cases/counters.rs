//! `kind: counters`: a counter that is raised and lowered where leases should be.

use super::{
    Column, Kind, Outcome, Series, Unit,
    file::{Common, per_second},
};
use crate::{
    algorithm::concurrency::real::real,
    config::document::{Node, Reader},
    model::time::Span,
    simulate::concurrency::counters::{self, Count, Counter, LIMIT},
};

/// See [`counters`].
pub(super) const KIND: Kind = Kind {
    title: "A counter instead of leases",
    columns: &[
        Column::new("in_flight", Unit::Number),
        Column::new("peak", Unit::Number),
        Column::new("above", Unit::Share),
        Column::new("admitted", Unit::Number),
    ],
    course: Some(Series {
        lines: &["in flight"],
        unit: "in flight",
        step: 1.0,
    }),
    case,
};

const NAMES: [&str; 5] = ["offered", "window", "lost", "refused_too", "count_refused"];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut offered = 200.0;
    let mut window = None;
    let mut counter = Counter {
        window: Span::ZERO,
        lost: 0.0,
        refused_too: false,
        count_refused: false,
    };
    let on = |reader: &mut Reader, value: &Node| reader.switch(value).is_some_and(|on| on.value);
    common.fields(
        reader,
        node,
        &NAMES,
        &mut |reader, name, value| match name {
            "offered" => per_second(reader, value, &mut offered),
            "window" => window = reader.span(value).filter(|window| !window.is_zero()),
            "lost" => counter.lost = reader.number(value, 0.0, 1.0).unwrap_or_default(),
            "refused_too" => counter.refused_too = on(reader, value),
            _ => counter.count_refused = on(reader, value),
        },
    );
    let count = window.map_or(Count::Leases, |window| {
        Count::Counter(Counter { window, ..counter })
    });
    common.level(real(LIMIT), "limit");
    common.run(move |seed| {
        let figures = counters::run(count, offered, seed);
        let outcome = Outcome::of([
            Some(figures.mean),
            Some(real(figures.peak)),
            Some(figures.above),
            Some(figures.admitted),
        ]);
        outcome.and(&figures.in_flight)
    });
}
