//! `concurrency:` of a rule: a limit on work in flight.

use std::sync::Arc;

use crate::{
    algorithm::concurrency::law::{
        AimdSettings, Gradient2Settings, Guard, LawSettings, TargetSettings, VegasSettings,
    },
    config::{
        finding::Position,
        reader::{Located, Reader},
        yaml::{Content, Node},
    },
    model::time::Span,
    rules::concurrency::{ConcurrencyRule, OnRestart, OnShrink, Shedding},
};

/// The fields, those of the laws last.
const NAMES: [&str; 33] = [
    "name",
    "limit",
    "lease_ttl",
    "max_lifetime",
    "max_wait",
    "max_waiters",
    "queue_target",
    "lifo",
    "heavy_patience",
    "under_share_wait",
    "criticality",
    "on_restart",
    "on_shrink",
    "prior_hold",
    "ewma_alpha",
    "exposure",
    "exposure_tau",
    "hint_booking",
    "hint_jitter",
    "hint_when_drained",
    "shadow",
    "window",
    "law",
    "target_latency",
    "guard",
    "initial",
    "min",
    "max",
    "timeout",
    "backoff",
    "smoothing",
    "tolerance",
    "queue",
];

/// `law:`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LawName {
    Fixed,
    Target,
    Aimd,
    Vegas,
    Gradient2,
}

const LAWS: [(&str, LawName); 5] = [
    ("fixed", LawName::Fixed),
    ("target", LawName::Target),
    ("aimd", LawName::Aimd),
    ("vegas", LawName::Vegas),
    ("gradient2", LawName::Gradient2),
];

const GUARDS: [(&str, Guard); 3] = [
    ("knee", Guard::Knee),
    ("floor", Guard::Floor),
    ("none", Guard::None),
];

/// What decides how many permits there are.
#[derive(Debug, Default)]
struct RawLaw {
    at: Position,
    law: Option<Located<LawName>>,
    limit: Option<Located<u64>>,
    target_latency: Option<Located<Span>>,
    guard: Option<Located<Guard>>,
    initial: Option<Located<u64>>,
    min: Option<Located<u64>>,
    max: Option<Located<u64>>,
    timeout: Option<Located<Span>>,
    backoff: Option<Located<f64>>,
    smoothing: Option<Located<f64>>,
    tolerance: Option<Located<f64>>,
    queue: Option<Located<f64>>,
}

/// Reads the block. The path of the rule and whether callers share it are not known here.
pub(super) fn read(reader: &mut Reader, node: &Node) -> Option<ConcurrencyRule> {
    let mut rule = ConcurrencyRule::fixed("", 0);
    let mut law = RawLaw {
        at: node.at,
        ..RawLaw::default()
    };
    let mut lives = [node.at; 2];
    reader.own_fields(node, &NAMES, &mut |reader, name, value| {
        match name {
            "lease_ttl" => lives[0] = value.at,
            "max_lifetime" => lives[1] = value.at,
            _ => {}
        }
        if !law.field(reader, name, value) {
            field(reader, &mut rule, name, value);
        }
    });
    if rule.lease_ttl.is_zero() {
        reader.error(
            lives[0],
            "a lease of no time holds nothing",
            "write a longer `lease_ttl`",
        );
    } else if rule.max_lifetime < rule.lease_ttl {
        let at = lives[0].max(lives[1]);
        reader.error(
            at,
            "`max_lifetime` is shorter than `lease_ttl`",
            "make it longer",
        );
    }
    rule.limit = law.compile(reader)?;
    Some(rule)
}

/// A field that is not about the size of the limit.
fn field(reader: &mut Reader, rule: &mut ConcurrencyRule, name: &str, value: &Node) {
    let span = |reader: &mut Reader, slot: &mut Span| {
        if let Some(span) = reader.span(value) {
            *slot = span;
        }
    };
    let on = |reader: &mut Reader, slot: &mut bool| {
        if let Some(on) = reader.switch(value) {
            *slot = on.value;
        }
    };
    let number = |reader: &mut Reader, slot: &mut f64, least: f64, most: f64| {
        if let Some(number) = reader.number(value, least, most) {
            *slot = number;
        }
    };
    match name {
        "name" => rule.name = reader.words(value).map(|name| Arc::from(name.value)),
        "lease_ttl" => span(reader, &mut rule.lease_ttl),
        "max_lifetime" => span(reader, &mut rule.max_lifetime),
        "max_wait" => span(reader, &mut rule.waiting.max_wait),
        "max_waiters" => {
            if let Some(count) = reader.count(value) {
                rule.waiting.max_waiters = count.value;
            }
        }
        "queue_target" => rule.waiting.queue_target = reader.span(value),
        "lifo" => on(reader, &mut rule.waiting.newest_first),
        "heavy_patience" => rule.waiting.heavy_patience = reader.span(value),
        "under_share_wait" => rule.waiting.under_share_wait = reader.span(value),
        "criticality" => {
            if let Some(shedding) = shedding(reader, value) {
                rule.shedding = shedding;
            }
        }
        "on_restart" => {
            const CHOICES: [(&str, OnRestart); 4] = [
                ("forget", OnRestart::Forget),
                ("quarantine", OnRestart::Quarantine),
                ("reattach", OnRestart::Reattach),
                ("snapshot", OnRestart::Snapshot),
            ];
            rule.on_restart = reader
                .choice(value, &CHOICES)
                .map_or(rule.on_restart, |choice| choice.value);
        }
        "on_shrink" => {
            const CHOICES: [(&str, OnShrink); 2] = [
                ("keep", OnShrink::Keep),
                ("revoke_newest", OnShrink::RevokeNewest),
            ];
            rule.on_shrink = reader
                .choice(value, &CHOICES)
                .map_or(rule.on_shrink, |choice| choice.value);
        }
        "prior_hold" => span(reader, &mut rule.estimates.prior_hold),
        "ewma_alpha" => number(reader, &mut rule.estimates.alpha, 0.001, 1.0),
        "exposure" => on(reader, &mut rule.estimates.exposure),
        "exposure_tau" => span(reader, &mut rule.estimates.memory),
        "hint_booking" => on(reader, &mut rule.hints.booking),
        "hint_jitter" => number(reader, &mut rule.hints.jitter, 0.0, 1.0),
        "hint_when_drained" => span(reader, &mut rule.hints.when_drained),
        "shadow" => on(reader, &mut rule.shadow),
        "window" => rule.window = reader.span(value).filter(|window| !window.is_zero()),
        _ => {}
    }
}

/// `criticality: [1.0, 1.0, 0.9, 0.8]`, fractions of the limit from the most critical class to the
/// least, or `criticality: {priority_wait: 100ms}`.
fn shedding(reader: &mut Reader, node: &Node) -> Option<Shedding> {
    if let Content::List(items) = &node.target().content {
        let read = |(index, item): (usize, &std::rc::Rc<Node>)| {
            reader.item(index, |reader| reader.number(item, 0.0, 1.0))
        };
        let fractions: Option<Vec<f64>> = items.iter().enumerate().map(read).collect();
        let Ok(fractions) = <[f64; 4]>::try_from(fractions?) else {
            reader.error(node.at, "there are four classes", CRITICALITY);
            return None;
        };
        if fractions.windows(2).any(|pair| pair[0] < pair[1]) {
            reader.error(
                node.at,
                "a less critical class has more than a more critical one",
                CRITICALITY,
            );
            return None;
        }
        return Some(Shedding::Thresholds(fractions));
    }
    let mut wait = None;
    reader.own_fields(node, &["priority_wait"], &mut |reader, _, value| {
        wait = reader.span(value);
    });
    wait.map(Shedding::PriorityWait)
}

const CRITICALITY: &str =
    "write four fractions of the limit that do not grow, such as [1.0, 1.0, 0.9, 0.8]";

impl RawLaw {
    /// Whether the field is one of these.
    fn field(&mut self, reader: &mut Reader, name: &str, value: &Node) -> bool {
        let located = |number: Option<f64>| {
            number.map(|number| Located {
                value: number,
                at: value.at,
            })
        };
        match name {
            "law" => self.law = reader.choice(value, &LAWS),
            "limit" => self.limit = reader.count(value),
            "target_latency" => self.target_latency = positive(reader, value),
            "guard" => self.guard = reader.choice(value, &GUARDS),
            "initial" => self.initial = reader.count(value),
            "min" => self.min = reader.count(value),
            "max" => self.max = reader.count(value),
            "timeout" => self.timeout = positive(reader, value),
            "backoff" => self.backoff = located(reader.number(value, 0.5, 0.99)),
            "smoothing" => self.smoothing = located(reader.number(value, 0.01, 1.0)),
            "tolerance" => self.tolerance = located(reader.number(value, 1.0, 10.0)),
            "queue" => self.queue = located(reader.number(value, 0.0, 1e6)),
            _ => return false,
        }
        true
    }

    /// The law: as named, else by what is given.
    fn name(&self) -> Option<LawName> {
        match (&self.law, &self.limit, &self.target_latency) {
            (Some(law), ..) => Some(law.value),
            (None, Some(_), _) => Some(LawName::Fixed),
            (None, None, Some(_)) => Some(LawName::Target),
            (None, None, None) => None,
        }
    }

    fn compile(self, reader: &mut Reader) -> Option<LawSettings> {
        let Some(law) = self.name() else {
            reader.error(
                self.at,
                "nothing says how many permits there are",
                "write `limit: N`, `target_latency: 350ms`, or a `law`",
            );
            return None;
        };
        self.check_fit(reader, law);
        let number =
            |slot: &Option<Located<u64>>, default| slot.as_ref().map_or(default, |n| n.value);
        let float =
            |slot: &Option<Located<f64>>, default| slot.as_ref().map_or(default, |n| n.value);
        let settings = match law {
            LawName::Fixed => {
                let Some(limit) = &self.limit else {
                    reader.error(self.at, "the limit is missing", "write `limit: N`");
                    return None;
                };
                LawSettings::Fixed(limit.value)
            }
            LawName::Target => {
                let Some(target) = &self.target_latency else {
                    reader.error(
                        self.at,
                        "the target is missing",
                        "write `target_latency: 350ms` or so",
                    );
                    return None;
                };
                let default = TargetSettings::new(target.value);
                LawSettings::Target(TargetSettings {
                    initial: number(&self.initial, default.initial),
                    min: number(&self.min, default.min),
                    max: number(&self.max, default.max),
                    guard: self
                        .guard
                        .as_ref()
                        .map_or(default.guard, |guard| guard.value),
                    ..default
                })
            }
            LawName::Aimd => {
                let default = AimdSettings::default();
                LawSettings::Aimd(AimdSettings {
                    initial: number(&self.initial, default.initial),
                    min: number(&self.min, default.min),
                    max: number(&self.max, default.max),
                    timeout: self
                        .timeout
                        .as_ref()
                        .map_or(default.timeout, |timeout| timeout.value),
                    backoff: float(&self.backoff, default.backoff),
                })
            }
            LawName::Vegas => {
                let default = VegasSettings::default();
                LawSettings::Vegas(VegasSettings {
                    initial: number(&self.initial, default.initial),
                    max: number(&self.max, default.max),
                    smoothing: float(&self.smoothing, default.smoothing),
                    ..default
                })
            }
            LawName::Gradient2 => {
                let default = Gradient2Settings::default();
                LawSettings::Gradient2(Gradient2Settings {
                    initial: number(&self.initial, default.initial),
                    min: number(&self.min, default.min),
                    max: number(&self.max, default.max),
                    smoothing: float(&self.smoothing, default.smoothing),
                    queue: float(&self.queue, default.queue),
                    tolerance: float(&self.tolerance, default.tolerance),
                    ..default
                })
            }
        };
        self.in_order(reader, settings)
    }

    /// Smallest, first and largest limit in that order. What is not given moves along with what is.
    fn in_order(&self, reader: &mut Reader, mut settings: LawSettings) -> Option<LawSettings> {
        let mut none = 1;
        let (min, initial, max) = match &mut settings {
            LawSettings::Fixed(_) => return Some(settings),
            LawSettings::Target(s) => (&mut s.min, &mut s.initial, &mut s.max),
            LawSettings::Aimd(s) => (&mut s.min, &mut s.initial, &mut s.max),
            LawSettings::Gradient2(s) => (&mut s.min, &mut s.initial, &mut s.max),
            LawSettings::Vegas(s) => (&mut none, &mut s.initial, &mut s.max),
        };
        if self.min.is_none() {
            let given = [&self.max, &self.initial].into_iter().flatten();
            *min = given.fold(*min, |min, given| min.min(given.value));
        }
        if self.max.is_none() {
            let given = [&self.min, &self.initial].into_iter().flatten();
            *max = given.fold(*max, |max, given| max.max(given.value));
        }
        if self.initial.is_none() {
            *initial = (*initial).max(*min).min(*max);
        }
        if *min == 0 || *min > *initial || *initial > *max {
            let what =
                format!("min {min}, initial {initial} and max {max} are not in order from 1");
            let at = [&self.min, &self.initial, &self.max].into_iter().flatten();
            let at = at.map(|given| given.at).max().unwrap_or(self.at);
            reader.error(at, what, "write them so that 1 <= min <= initial <= max");
            return None;
        }
        Some(settings)
    }

    /// Fields that mean something for some laws only.
    fn check_fit(&self, reader: &mut Reader, law: LawName) {
        use LawName::{Aimd, Fixed, Gradient2, Target, Vegas};
        fn at<T>(slot: Option<&Located<T>>) -> Option<Position> {
            slot.map(|slot| slot.at)
        }
        let fields: [(&str, Option<Position>, &[LawName]); 11] = [
            ("limit", at(self.limit.as_ref()), &[Fixed]),
            (
                "target_latency",
                at(self.target_latency.as_ref()),
                &[Target],
            ),
            ("guard", at(self.guard.as_ref()), &[Target]),
            (
                "initial",
                at(self.initial.as_ref()),
                &[Target, Aimd, Vegas, Gradient2],
            ),
            ("min", at(self.min.as_ref()), &[Target, Aimd, Gradient2]),
            (
                "max",
                at(self.max.as_ref()),
                &[Target, Aimd, Vegas, Gradient2],
            ),
            ("timeout", at(self.timeout.as_ref()), &[Aimd]),
            ("backoff", at(self.backoff.as_ref()), &[Aimd]),
            (
                "smoothing",
                at(self.smoothing.as_ref()),
                &[Vegas, Gradient2],
            ),
            ("tolerance", at(self.tolerance.as_ref()), &[Gradient2]),
            ("queue", at(self.queue.as_ref()), &[Gradient2]),
        ];
        let name = LAWS
            .iter()
            .find(|(_, other)| *other == law)
            .map_or("", |(name, _)| name);
        for (field, at, laws) in fields {
            if let Some(at) = at.filter(|_| !laws.contains(&law)) {
                reader.field(field, |reader| {
                    let what = format!("the law `{name}` has no such field");
                    reader.error(at, what, "remove it, or choose another `law`");
                });
            }
        }
    }
}

fn positive(reader: &mut Reader, node: &Node) -> Option<Located<Span>> {
    let span = reader.span(node)?;
    if span.is_zero() {
        reader.error(
            node.at,
            "must be longer than zero",
            super::units::SPAN_ADVICE,
        );
        return None;
    }
    Some(Located {
        value: span,
        at: node.at,
    })
}
