//! `kind: restart`: the limiter restarts while its holders go on.

use super::{
    Column, Kind, Outcome, Unit,
    file::{Common, word},
};
use crate::{
    algorithm::concurrency::real::real,
    config::document::{Node, Reader},
    rules::concurrency::OnRestart,
    simulate::concurrency::restart,
};

/// See [`restart`].
pub(super) const KIND: Kind = Kind {
    title: "A restart",
    columns: &[
        Column::new("peak", Unit::Number),
        Column::new("refused", Unit::Number),
        Column::new("admitted", Unit::Number),
    ],
    course: None,
    case,
};

const MODES: [(&str, OnRestart); 4] = [
    ("forget", OnRestart::Forget),
    ("quarantine", OnRestart::Quarantine),
    ("reattach", OnRestart::Reattach),
    ("snapshot", OnRestart::Snapshot),
];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut mode = OnRestart::default();
    common.fields(reader, node, &["on_restart"], &mut |reader, _, value| {
        word(reader, value, &MODES, &mut mode);
    });
    common.run(move |seed| {
        let figures = restart::run(mode, seed);
        Outcome::of([
            Some(real(figures.peak)),
            Some(real(figures.refused)),
            Some(real(figures.admitted)),
        ])
    });
}
