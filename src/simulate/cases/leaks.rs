//! `kind: leaks`: some holders never give their lease back.

use super::{Column, Kind, Outcome, Unit, file::Common};
use crate::{
    algorithm::concurrency::real::real,
    config::document::{Node, Reader},
    model::time::Span,
    simulate::concurrency::leaks::{self, Leak},
};

/// See [`leaks`].
pub(super) const KIND: Kind = Kind {
    title: "Leases that nobody gives back",
    columns: &[
        Column::new("admitted", Unit::Number),
        Column::new("erlang", Unit::Number),
        Column::new("ceiling", Unit::Number),
        Column::new("last_second", Unit::Number),
    ],
    course: None,
    case,
};

const NAMES: [&str; 4] = ["share", "ttl", "detection", "tick"];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut leak = Leak {
        share: 0.01,
        ttl: None,
        detection: None,
        tick: None,
    };
    common.fields(
        reader,
        node,
        &NAMES,
        &mut |reader, name, value| match name {
            "share" => leak.share = reader.number(value, 0.0, 1.0).unwrap_or_default(),
            "ttl" => leak.ttl = reader.span(value).map(Span::as_secs_f64),
            "detection" => leak.detection = reader.span(value).map(Span::as_secs_f64),
            _ => leak.tick = reader.span(value).map(Span::as_secs_f64),
        },
    );
    common.run(move |seed| {
        let figures = leaks::run(leak, seed);
        let last_second = u64::try_from(figures.last_second).unwrap_or(u64::MAX);
        Outcome::of([
            Some(figures.admitted),
            Some(figures.erlang),
            Some(figures.ceiling),
            Some(real(last_second)),
        ])
    });
}
