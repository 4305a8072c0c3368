//! How a limit on work in flight is found: given, or by a law that adapts it.

use crate::{
    algorithm::concurrency::law::{
        AimdSettings, Gradient2Settings, Guard, LawSettings, TargetSettings, VegasSettings,
    },
    config::{
        finding::Position,
        reader::{Located, Reader},
        units,
        yaml::Node,
    },
    model::time::Span,
};

/// The fields that belong to the laws.
pub(super) const NAMES: [&str; 12] = [
    "law",
    "limit",
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
pub(super) struct RawLaw {
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

impl RawLaw {
    /// Of a block that begins there.
    pub(super) fn new(at: Position) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    /// Reads one of [`NAMES`].
    pub(super) fn field(&mut self, reader: &mut Reader, name: &str, value: &Node) {
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
            _ => {}
        }
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

    /// The law, if what is given makes one.
    pub(super) fn compile(self, reader: &mut Reader) -> Option<LawSettings> {
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
        reader.error(node.at, "must be longer than zero", units::SPAN_ADVICE);
        return None;
    }
    Some(Located {
        value: span,
        at: node.at,
    })
}
