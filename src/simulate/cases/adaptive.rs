//! `kind: adaptive`: laws that find the limit of a service that becomes half as fast for two
//! minutes.

use super::{Column, Kind, Outcome, Series, Unit, file::Common};
use crate::{
    config::document::{Node, Reader, read_concurrency},
    simulate::concurrency::adaptive::{self, Rule},
};

/// See [`adaptive`].
pub(super) const KIND: Kind = Kind {
    title: "Limits that find themselves",
    columns: &[
        Column::new("good_before", Unit::Number),
        Column::new("good_slow", Unit::Number),
        Column::new("good_after", Unit::Number),
        Column::new("latency_after", Unit::Seconds),
        Column::new("latency_before", Unit::Seconds),
        Column::new("latency_slow", Unit::Seconds),
        Column::new("latency_drift", Unit::Number),
        Column::new("limit_before", Unit::Number),
        Column::new("limit_slow", Unit::Number),
        Column::new("limit_after", Unit::Number),
    ],
    course: Some(Series {
        lines: &["answers in time per second", "limit"],
        unit: "count",
        step: 1.0,
    }),
    case,
};

/// Envoy's own law, to compare: whether its baseline is measured anew.
const ENVOY: [(&str, bool); 2] = [("known_baseline", false), ("measured_baseline", true)];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut rule = None;
    common.fields(
        reader,
        node,
        &["concurrency", "envoy"],
        &mut |reader, name, value| {
            rule = if name == "concurrency" {
                read_concurrency(reader, value).map(|rule| Rule::Law(rule.limit, rule.window))
            } else {
                let measured = reader.choice(value, &ENVOY);
                measured.map(|measured| Rule::Envoy {
                    measured: measured.value,
                })
            };
        },
    );
    if rule.is_none() {
        let advice = "write it as in a rule: `concurrency: {target_latency: 350ms}`";
        reader.error(node.at, "`concurrency` is missing", advice);
    }
    let Some(rule) = rule else { return };
    common.run(move |seed| {
        let figures = adaptive::run(rule, seed);
        let [before, slow, after] = figures.latency;
        let outcome = Outcome::of([
            Some(figures.good[0]),
            Some(figures.good[1]),
            Some(figures.good[2]),
            Some(after),
            Some(before),
            Some(slow),
            Some(after / before).filter(|drift| drift.is_finite()),
            Some(figures.limit[0]),
            Some(figures.limit[1]),
            Some(figures.limit[2]),
        ]);
        outcome.and(&figures.per_second).and(&figures.limits)
    });
}
