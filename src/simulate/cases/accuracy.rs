//! `kind: accuracy`: what a waiting request would be told, against how long it really waits.

use super::{
    Column, Kind, Outcome, Unit,
    file::{Common, bounded, count, per_second, seconds},
};
use crate::{
    algorithm::concurrency::real::real,
    config::document::{Node, Reader},
    simulate::concurrency::accuracy::{self, Load},
};

/// See [`accuracy`].
pub(super) const KIND: Kind = Kind {
    title: "How true a hint is",
    columns: &[
        Column::new("told", Unit::Seconds),
        Column::new("real", Unit::Seconds),
        Column::new("error", Unit::Seconds),
        Column::new("real_by_told", Unit::Share),
        Column::new("correlation", Unit::Share),
        Column::new("waited", Unit::Number),
    ],
    course: None,
    case,
};

const NAMES: [&str; 4] = ["offered", "permits", "hold", "length"];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut load = Load {
        offered: 110.0,
        permits: 30,
        hold: 0.25,
        seconds: 4_000.0,
    };
    common.fields(
        reader,
        node,
        &NAMES,
        &mut |reader, name, value| match name {
            "offered" => per_second(reader, value, &mut load.offered),
            "permits" => count(reader, value, &mut load.permits),
            "hold" => seconds(reader, value, &mut load.hold),
            _ => seconds(reader, value, &mut load.seconds),
        },
    );
    bounded(reader, node, load.offered * load.seconds);
    common.run(move |seed| {
        let figures = accuracy::run(load, seed);
        Outcome::of([
            Some(figures.told),
            Some(figures.real),
            Some(figures.error),
            Some(figures.real / figures.told).filter(|ratio| ratio.is_finite()),
            Some(figures.correlation),
            Some(real(figures.waited)),
        ])
    });
}
