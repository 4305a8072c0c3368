//! `kind: hints`: a burst on top of a load that nearly fills the limit, and when refused callers
//! come back.

use super::{
    Column, Kind, Outcome, Unit,
    file::{Common, seconds},
};
use crate::{
    algorithm::concurrency::real::real,
    config::document::{Node, Reader},
    simulate::concurrency::hints::{self, Policy},
};

/// See [`hints`].
pub(super) const KIND: Kind = Kind {
    title: "When refused callers come back",
    columns: &[
        Column::new("attempts", Unit::Number),
        Column::new("failed", Unit::Number),
        Column::new("wait_p99", Unit::Seconds),
        Column::new("drained", Unit::Seconds),
        Column::new("in_use_after", Unit::Share),
    ],
    course: None,
    case,
};

const POLICIES: [(&str, Policy); 5] = [
    ("full_jitter", Policy::FullJitter),
    ("equal_jitter", Policy::EqualJitter),
    ("hint", Policy::Hint { estimated: false }),
    ("hint_estimated", Policy::Hint { estimated: true }),
    ("count", Policy::Count),
];

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut policy = None;
    common.fields(
        reader,
        node,
        &["after", "fixed"],
        &mut |reader, name, value| {
            policy = if name == "after" {
                reader.choice(value, &POLICIES).map(|policy| policy.value)
            } else {
                let mut delay = 0.0;
                seconds(reader, value, &mut delay);
                Some(Policy::Fixed(delay))
            };
        },
    );
    if policy.is_none() {
        let advice = "write `after: hint` or `fixed: 1s`";
        reader.error(node.at, "when they come back is missing", advice);
    }
    let Some(policy) = policy else { return };
    common.run(move |seed| {
        let figures = hints::run(policy, seed);
        Outcome::of([
            Some(figures.attempts),
            Some(real(figures.failed)),
            Some(figures.p99_wait),
            Some(figures.drained),
            Some(figures.admitted_after_burst),
        ])
    });
}
