//! `kind: gate`: what a limit alone admits. An arrival that finds all permits out is lost.

use super::{
    Column, Kind, Outcome, Series, Unit,
    file::{Common, bounded, count, per_second, seconds, word},
};
use crate::{
    algorithm::concurrency::real::{real, whole},
    config::document::{Node, Reader},
    simulate::concurrency::{
        Hold,
        gate::{self, Gate},
    },
};

/// See [`gate`].
pub(super) const KIND: Kind = Kind {
    title: "A limit on work in flight",
    columns: &[
        Column::new("admitted", Unit::Number),
        Column::new("peak", Unit::Number),
        Column::new("audit_error", Unit::Number),
        Column::new("before_step", Unit::Number),
        Column::new("after_step", Unit::Number),
    ],
    course: Some(Series {
        lines: &["admitted per second", "in flight"],
        unit: "count",
        step: 1.0,
    }),
    case,
};

const NAMES: [&str; 6] = ["permits", "offered", "hold", "spread", "step", "length"];

/// Holds of this mean.
type Spread = fn(f64) -> Hold;

const SPREADS: [(&str, Spread); 3] = [
    ("constant", Hold::Constant),
    ("exponential", Hold::Exponential),
    ("erlang4", Hold::Erlang4),
];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut gate = Gate::new(200.0, Hold::Exponential(0.25));
    let mut hold = gate.hold.mean();
    let mut spread: Spread = Hold::Exponential;
    let mut length = f64::from(gate.seconds);
    common.fields(
        reader,
        node,
        &NAMES,
        &mut |reader, name, value| match name {
            "permits" => count(reader, value, &mut gate.permits),
            "offered" => per_second(reader, value, &mut gate.offered),
            "hold" => seconds(reader, value, &mut hold),
            "spread" => word(reader, value, &SPREADS, &mut spread),
            "length" => seconds(reader, value, &mut length),
            _ => gate.step = Some(step(reader, value)),
        },
    );
    gate.hold = spread(hold);
    gate.seconds = u32::try_from(whole(length)).unwrap_or(u32::MAX).max(2);
    gate.warm_up = gate.warm_up.min(gate.seconds / 2);
    bounded(reader, node, gate.offered * length);
    common.level(real(gate.permits), "limit");
    common.run(move |seed| {
        let figures = gate::run(gate, seed);
        let [before, after] = figures
            .around_step
            .map_or([None; 2], |around| around.map(Some));
        let outcome = Outcome::of([
            Some(figures.admitted),
            Some(real(figures.peak)),
            Some(figures.view.conservation_error),
            before,
            after,
        ]);
        // Without a step one second is like the other.
        if gate.step.is_some() {
            outcome.and(&figures.per_second).and(&figures.in_flight)
        } else {
            outcome
        }
    });
}

/// `{at: 60s, hold: 500ms}`
fn step(reader: &mut Reader, node: &Node) -> (f64, f64) {
    let (mut at, mut hold) = (0.0, 0.0);
    reader.own_fields(
        node,
        &["at", "hold"],
        &mut |reader, name, value| match name {
            "at" => seconds(reader, value, &mut at),
            _ => seconds(reader, value, &mut hold),
        },
    );
    if hold <= 0.0 {
        reader.error(
            node.at,
            "`hold` is missing or zero",
            "say how long each holds from then on",
        );
    }
    (at, hold)
}
