//! `kind: stacked`: a quota and a limit on work in flight, one after the other or as one decision.

use super::{
    Column, Kind, Outcome, Unit,
    file::{Common, word},
};
use crate::{
    algorithm::concurrency::real::real,
    config::document::{Node, Reader},
    simulate::concurrency::stacked::{self, Order},
};

/// See [`stacked`].
pub(super) const KIND: Kind = Kind {
    title: "A quota and a limit on work in flight",
    columns: &[
        Column::new("ok", Unit::Number),
        Column::new("quota_used", Unit::Number),
        Column::new("burned", Unit::Number),
        Column::new("refused_concurrency", Unit::Number),
        Column::new("refused_rate", Unit::Number),
        Column::new("last_ok", Unit::Seconds),
    ],
    course: None,
    case,
};

const ORDERS: [(&str, Order); 2] = [("rate_first", Order::RateFirst), ("atomic", Order::Atomic)];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut order = Order::Atomic;
    common.fields(reader, node, &["order"], &mut |reader, _, value| {
        word(reader, value, &ORDERS, &mut order);
    });
    common.run(move |seed| {
        let figures = stacked::run(order, seed);
        Outcome::of([
            Some(real(figures.ok)),
            Some(real(figures.quota_used)),
            Some(real(figures.burned)),
            Some(real(figures.refused_concurrency)),
            Some(real(figures.refused_rate)),
            Some(figures.last_ok),
        ])
    });
}
