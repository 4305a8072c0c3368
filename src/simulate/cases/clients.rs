//! `kind: clients`: clients of a rate limit that come back when they are refused.

use super::{
    Column, Kind, Outcome, Series, Unit,
    file::{Common, bounded, count, per_second, seconds, word},
};
use crate::{
    algorithm::concurrency::real::{real, whole},
    config::document::{Node, RawLimits, Reader},
    model::time::Span,
    simulate::concurrency::clients::{self, Manners, Scenario},
};

/// See [`clients`].
pub(super) const KIND: Kind = Kind {
    title: "Clients that come back",
    columns: &[
        Column::new("load", Unit::Number),
        Column::new("attempts", Unit::Number),
        Column::new("later_peak", Unit::Number),
        Column::new("served", Unit::Share),
        Column::new("last", Unit::Seconds),
    ],
    course: Some(Series {
        lines: &["attempts", "served"],
        unit: "per 100 ms",
        step: 0.1,
    }),
    case,
};

const NAMES: [&str; 10] = [
    "limits",
    "spread",
    "whole_seconds",
    "clients",
    "offered",
    "length",
    "manners",
    "base",
    "jitter",
    "attempts",
];

/// What a file calls the manners; the pauses are given beside them.
#[derive(Clone, Copy)]
enum Word {
    GivesUp,
    AtOnce,
    Doubling,
    FullJitter,
    AsTold,
}

const WORDS: [(&str, Word); 5] = [
    ("gives_up", Word::GivesUp),
    ("at_once", Word::AtOnce),
    ("doubling", Word::Doubling),
    ("full_jitter", Word::FullJitter),
    ("as_told", Word::AsTold),
];

/// Most attempts of a request.
const MOST_ATTEMPTS: u64 = 1_000;

fn case(reader: &mut Reader, node: &Node, common: &mut Common) {
    let mut limits = Vec::new();
    let (mut spread, mut whole_seconds, mut at_once) = (0.0, false, 0);
    let (mut offered, mut length) = (0.0, 10.0);
    let mut manners = Word::GivesUp;
    let (mut base, mut jitter) = (Span::from_secs(1), Span::ZERO);
    let mut attempts = 4;
    common.fields(
        reader,
        node,
        &NAMES,
        &mut |reader, name, value| match name {
            "limits" => limits = RawLimits::read(reader, value).limits,
            "spread" => spread = reader.number(value, 0.0, 1.0).unwrap_or_default(),
            "whole_seconds" => whole_seconds = reader.switch(value).is_some_and(|on| on.value),
            "clients" => count(reader, value, &mut at_once),
            "offered" => per_second(reader, value, &mut offered),
            "length" => seconds(reader, value, &mut length),
            "manners" => word(reader, value, &WORDS, &mut manners),
            "base" => base = reader.span(value).unwrap_or_default(),
            "jitter" => jitter = reader.span(value).unwrap_or_default(),
            _ => count(reader, value, &mut attempts),
        },
    );
    if attempts == 0 || attempts > MOST_ATTEMPTS {
        let advice = format!("write 1 to {MOST_ATTEMPTS} `attempts`");
        reader.error(node.at, "too few or too many attempts", advice);
    }
    let requests = real(at_once) + offered * length;
    bounded(reader, node, requests * real(attempts));
    if limits.len() != 1 || requests < 1.0 {
        let advice = "write `limits:` with one limit as in a rule, and `clients:` or `offered:`";
        reader.error(node.at, "who comes, or to what, is missing", advice);
    }
    if reader.has_errors() {
        return;
    }
    let Some(limit) = limits.pop() else { return };
    // Evenly: chance is in what the clients do.
    let gap = Span::from_secs_f64(1.0 / offered.max(1e-9));
    let stream = (0..whole(offered * length)).map(|number| gap.saturating_mul(number));
    let together = (0..at_once).map(|_| Span::ZERO);
    let scenario = Scenario {
        limit,
        arrivals: together.chain(stream).collect(),
        manners: match manners {
            Word::GivesUp => Manners::GivesUp,
            Word::AtOnce => Manners::AtOnce,
            Word::Doubling => Manners::Doubling(base),
            Word::FullJitter => Manners::FullJitter(base),
            Word::AsTold => Manners::AsTold(jitter),
        },
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        spread_permille: u32::try_from(whole(spread * 1_000.0)).unwrap_or(1_000),
        whole_seconds,
    };
    common.run(move |seed| {
        let figures = clients::run(&scenario, seed);
        let outcome = Outcome::of([
            Some(figures.load),
            Some(figures.attempts),
            Some(real(figures.later_peak)),
            Some(figures.served),
            figures.last,
        ]);
        outcome.and(&figures.per_bin).and(&figures.served_per_bin)
    });
}
