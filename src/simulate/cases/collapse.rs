//! `kind: collapse`: overload in front of 25 workers, with queues, gates and retries.

use super::{
    Column, Kind, Outcome, Series, Unit,
    file::{Common, count, word},
};
use crate::{
    config::document::{Node, Reader},
    simulate::concurrency::collapse::{self, Policy, Retries},
};

/// See [`collapse`].
pub(super) const KIND: Kind = Kind {
    title: "Overload",
    columns: &[
        Column::new("good_early", Unit::Number),
        Column::new("good_late", Unit::Number),
        Column::new("recovery", Unit::Seconds),
        Column::new("p99", Unit::Seconds),
        Column::new("wasted", Unit::Share),
        Column::new("attempts", Unit::Number),
    ],
    course: Some(Series {
        lines: &["answers in time"],
        unit: "per second",
        step: 1.0,
    }),
    case,
};

const NAMES: [&str; 6] = [
    "queue",
    "gate",
    "bounded_queue",
    "newest_first",
    "drop_expired",
    "retries",
];

const RETRIES: [(&str, Retries); 3] = [
    ("none", Retries::None),
    ("on_refusal", Retries::OnRefusal),
    ("on_timeout", Retries::OnTimeout),
];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let (mut gate, mut bounded) = (None, None);
    let (mut newest_first, mut drop_expired) = (false, false);
    let mut retries = Retries::None;
    let number = |reader: &mut Reader, value: &Node| {
        let mut number = 0;
        count(reader, value, &mut number);
        Some(number)
    };
    common.fields(
        reader,
        node,
        &NAMES,
        &mut |reader, name, value| match name {
            "gate" => gate = number(reader, value),
            "bounded_queue" => bounded = number(reader, value),
            "newest_first" => newest_first = reader.switch(value).is_some_and(|on| on.value),
            "drop_expired" => drop_expired = reader.switch(value).is_some_and(|on| on.value),
            "retries" => {
                word(reader, value, &RETRIES, &mut retries);
            }
            // What there is without a bound: said for the reader.
            _ => {
                reader.choice(value, &[("unbounded", ())]);
            }
        },
    );
    let policy = match (gate, bounded) {
        (Some(permits), None) => Policy::Gate(permits),
        (None, Some(places)) => Policy::BoundedQueue(places),
        (None, None) => Policy::Queue {
            newest_first,
            drop_expired,
        },
        (Some(_), Some(_)) => {
            reader.error(node.at, "both a gate and a queue", "remove one of the two");
            return;
        }
    };
    common.run(move |seed| {
        let figures = collapse::run(policy, retries, seed);
        let outcome = Outcome::of([
            Some(figures.good_early),
            Some(figures.good_late),
            figures.recovery,
            Some(figures.p99),
            Some(figures.wasted),
            Some(figures.attempts),
        ]);
        outcome.and(&figures.per_second)
    });
}
