//! `kind: neighbours`: one loud tenant and thirty small ones on one limit.

use super::{
    Column, Kind, Outcome, Unit,
    file::{Common, count},
};
use crate::{
    config::document::{Node, Reader},
    simulate::concurrency::neighbours::{self, Policy},
};

/// See [`neighbours`].
pub(super) const KIND: Kind = Kind {
    title: "A loud tenant and thirty small ones",
    columns: &[
        Column::new("small_ok", Unit::Share),
        Column::new("worst_ok", Unit::Share),
        Column::new("loud", Unit::Number),
        Column::new("total", Unit::Number),
        Column::new("in_use", Unit::Share),
        Column::new("wait_p50", Unit::Seconds),
        Column::new("wait_p99", Unit::Seconds),
    ],
    course: None,
    case,
};

const NAMES: [&str; 5] = [
    "hard_cap",
    "reserve",
    "loud_cap",
    "under_share_wait",
    "everyone_waits",
];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut policy = Policy::None;
    let mut policies = 0;
    common.fields(reader, node, &NAMES, &mut |reader, name, value| {
        policies += 1;
        let mut permits = 0;
        policy = match name {
            "under_share_wait" => Policy::UnderShareWait(reader.span(value).unwrap_or_default()),
            "everyone_waits" => Policy::EveryoneWaits(reader.span(value).unwrap_or_default()),
            name => {
                count(reader, value, &mut permits);
                match name {
                    "hard_cap" => Policy::HardCap(permits),
                    "reserve" => Policy::Reserve(permits),
                    _ => Policy::LoudCap(permits),
                }
            }
        };
    });
    if policies > 1 {
        reader.error(
            node.at,
            "one policy for each case",
            "write each as a case of its own",
        );
    }
    common.run(move |seed| {
        let figures = neighbours::run(policy, seed);
        Outcome::of([
            Some(figures.small_ok),
            Some(figures.worst_ok),
            Some(figures.loud),
            Some(figures.total),
            Some(figures.utilisation),
            figures.wait.map(|(p50, _)| p50),
            figures.wait.map(|(_, p99)| p99),
        ])
    });
}
