//! `kind: heavy`: requests of one permit, and some of ten.

use super::{
    Column, Kind, Outcome, Unit,
    file::{Common, seconds, word},
};
use crate::{
    config::document::{Node, Reader},
    simulate::concurrency::heavy::{self, Policy},
};

/// See [`heavy`].
pub(super) const KIND: Kind = Kind {
    title: "Requests of one permit and of ten",
    columns: &[
        Column::new("light_ok", Unit::Share),
        Column::new("heavy_ok", Unit::Share),
        Column::new("heavy_wait_p99", Unit::Seconds),
    ],
    course: None,
    case,
};

const POLICIES: [(&str, Policy); 3] = [
    ("refused", Policy::Refuse),
    ("wait", Policy::Wait),
    ("wait_in_front", Policy::Reserve),
];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut policy = Policy::Refuse;
    let mut length = 3_000.0;
    common.fields(
        reader,
        node,
        &["heavy", "length"],
        &mut |reader, name, value| match name {
            "heavy" => {
                word(reader, value, &POLICIES, &mut policy);
            }
            _ => seconds(reader, value, &mut length),
        },
    );
    common.run(move |seed| {
        let figures = heavy::run(policy, length, seed);
        Outcome::of([
            Some(figures.light_ok),
            Some(figures.heavy_ok),
            figures.heavy_p99_wait,
        ])
    });
}
