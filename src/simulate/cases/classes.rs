//! `kind: classes`: three classes of requests, twice as many as the limit lets through.

use super::{Column, Kind, Outcome, Unit, file::Common};
use crate::{
    config::document::{Node, Reader, read_concurrency},
    simulate::concurrency::classes,
};

/// See [`classes`].
pub(super) const KIND: Kind = Kind {
    title: "Who is refused first",
    columns: &[
        Column::new("first_ok", Unit::Share),
        Column::new("second_ok", Unit::Share),
        Column::new("third_ok", Unit::Share),
        Column::new("total", Unit::Number),
        Column::new("first_wait_p99", Unit::Seconds),
        Column::new("third_wait_p99", Unit::Seconds),
    ],
    course: None,
    case,
};

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut shedding = None;
    common.fields(reader, node, &["concurrency"], &mut |reader, _, value| {
        shedding = read_concurrency(reader, value).map(|rule| rule.shedding);
    });
    if shedding.is_none() {
        let advice = "write it as in a rule: `concurrency: {limit: 30, criticality: …}`";
        reader.error(node.at, "`concurrency` is missing", advice);
    }
    let Some(shedding) = shedding else { return };
    common.run(move |seed| {
        let figures = classes::run(shedding, seed);
        let [first, second, third] = figures.ok;
        Outcome::of([
            Some(first),
            Some(second),
            Some(third),
            Some(figures.total),
            figures.p99_wait[0],
            figures.p99_wait[2],
        ])
    });
}
