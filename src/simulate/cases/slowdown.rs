//! `kind: slowdown`: the service becomes slow for a minute, behind a rate limit or behind a limit
//! on work in flight.

use super::{
    Column, Kind, Outcome, Series, Unit,
    file::{Common, count, per_second},
};
use crate::{
    algorithm::concurrency::real::whole,
    config::document::{Node, Reader},
    simulate::concurrency::slowdown::{self, Guard},
};

/// See [`slowdown`].
pub(super) const KIND: Kind = Kind {
    title: "A service that becomes slow",
    columns: &[
        Column::new("good_normal", Unit::Number),
        Column::new("good_slow", Unit::Number),
        Column::new("good_after", Unit::Number),
        Column::new("admitted_normal", Unit::Number),
        Column::new("admitted_slow", Unit::Number),
    ],
    course: Some(Series {
        lines: &["answers in time"],
        unit: "per second",
        step: 1.0,
    }),
    case,
};

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut guards = Vec::new();
    common.fields(
        reader,
        node,
        &["rate", "permits"],
        &mut |reader, name, value| {
            guards.push(if name == "rate" {
                let mut rate = 0.0;
                per_second(reader, value, &mut rate);
                Guard::Rate(whole(rate))
            } else {
                let mut permits = 0;
                count(reader, value, &mut permits);
                Guard::Concurrency(permits)
            });
        },
    );
    let [guard] = *guards.as_slice() else {
        reader.error(
            node.at,
            "one guard is needed",
            "write `rate: 95/s` or `permits: 25`",
        );
        return;
    };
    common.run(move |seed| {
        let figures = slowdown::run(guard, seed);
        let outcome = Outcome::of([
            Some(figures.good_normal),
            Some(figures.good_slow),
            Some(figures.good_after),
            Some(figures.admitted_normal),
            Some(figures.admitted_slow),
        ]);
        outcome.and(&figures.per_second)
    });
}
