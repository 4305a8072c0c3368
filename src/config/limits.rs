//! `limits:` of a rule: several limits, each with an algorithm of its own, all of which must pass.

use std::{hash::Hasher, rc::Rc, sync::Arc};

use siphasher::sip::SipHasher13;

use crate::{
    algorithm::sliding_log::MAX_ENTRIES,
    config::{
        finding::{Position, quoted},
        quota::{quota, rate_of, unit_multiplier},
        reader::{Located, Reader},
        slice,
        units::{self, Period, Rate},
        yaml::Node,
    },
    model::{
        limit::{Algorithm, Anchor, Calendar},
        request::Unit,
    },
    rules::{
        limit::{CostUnit, Limit, Shown, Slice},
        tree::MOST_LIMITS,
    },
};

/// The fields of one limit.
const NAMES: [&str; 14] = [
    "name",
    "rate",
    "unit",
    "requests_per_unit",
    "unit_multiplier",
    "algorithm",
    "burst",
    "anchor",
    "time_zone",
    "count_denied",
    "hold",
    "slice",
    "cost_unit",
    "replaces",
];

/// What `limits:` says.
#[derive(Debug, Default)]
pub(crate) struct RawLimits {
    pub(super) at: Position,
    pub(crate) limits: Vec<Limit>,
    /// Names of limits of the same request that this rule replaces.
    pub(super) replaces: Vec<Box<str>>,
}

/// `algorithm:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    LeakyBucket,
    LeakyQueue,
}

const KINDS: [(&str, Kind); 6] = [
    ("fixed_window", Kind::FixedWindow),
    ("sliding_log", Kind::SlidingLog),
    ("sliding_window", Kind::SlidingWindow),
    ("token_bucket", Kind::TokenBucket),
    ("leaky_bucket", Kind::LeakyBucket),
    ("leaky_queue", Kind::LeakyQueue),
];

/// `anchor:`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AnchorKind {
    #[default]
    Clock,
    FirstHit,
    LastHit,
    Calendar,
}

const ANCHORS: [(&str, AnchorKind); 4] = [
    ("clock", AnchorKind::Clock),
    ("first_hit", AnchorKind::FirstHit),
    ("last_hit", AnchorKind::LastHit),
    ("calendar", AnchorKind::Calendar),
];

/// One limit as it is written.
#[derive(Debug, Default)]
struct RawLimit {
    at: Position,
    name: Option<Located<Box<str>>>,
    rate: Option<Located<Rate>>,
    unit: Option<Located<Unit>>,
    requests_per_unit: Option<Located<u64>>,
    unit_multiplier: Option<Located<u64>>,
    algorithm: Option<Located<Kind>>,
    burst: Option<Located<u64>>,
    anchor: Option<Located<AnchorKind>>,
    time_zone: Option<Located<Box<str>>>,
    count_denied: Option<Located<bool>>,
    hold: Option<Located<bool>>,
    slice: Option<Located<Slice>>,
    cost_unit: Option<Located<Box<str>>>,
}

impl RawLimits {
    pub(crate) fn read(reader: &mut Reader, node: &Node) -> Self {
        let mut all = Self {
            at: node.at,
            ..Self::default()
        };
        let items: &[Rc<Node>] = reader.list(node);
        if items.is_empty() {
            reader.error(
                node.at,
                "there is no limit in the list",
                "add one, or remove `limits`",
            );
        }
        if items.len() > MOST_LIMITS {
            let what = format!(
                "a rule has at most {MOST_LIMITS} limits, here are {}",
                items.len()
            );
            reader.error(
                node.at,
                what,
                "put some of them into a descriptor of their own",
            );
        }
        for (index, item) in items.iter().enumerate() {
            reader.item(index, |reader| {
                let raw = RawLimit::read(reader, item, &mut all.replaces);
                let taken = |limit: &Limit| limit.name.as_deref() == raw.name();
                if raw.name.is_some() && all.limits.iter().any(taken) {
                    reader.error(
                        raw.at,
                        "the name is taken by another limit of this rule",
                        "choose another",
                    );
                }
                all.limits.extend(raw.compile(reader, index));
            });
        }
        all
    }
}

impl RawLimit {
    fn read(reader: &mut Reader, node: &Node, replaces: &mut Vec<Box<str>>) -> Self {
        let mut limit = Self {
            at: node.at,
            ..Self::default()
        };
        reader.own_fields(node, &NAMES, &mut |reader, name, value| match name {
            "name" => limit.name = reader.words(value),
            "rate" => limit.rate = reader.rate(value),
            "unit" => limit.unit = reader.unit(value),
            "requests_per_unit" => limit.requests_per_unit = reader.count(value),
            "unit_multiplier" => limit.unit_multiplier = reader.count(value),
            "algorithm" => limit.algorithm = reader.choice(value, &KINDS),
            "burst" => limit.burst = reader.count(value),
            "anchor" => limit.anchor = reader.choice(value, &ANCHORS),
            "time_zone" => limit.time_zone = reader.words(value),
            "count_denied" => limit.count_denied = reader.switch(value),
            "hold" => limit.hold = reader.switch(value),
            "slice" => limit.slice = Some(slice::read(reader, value)),
            "cost_unit" => limit.cost_unit = reader.words(value),
            "replaces" => {
                let names = read_replaces(reader, value).into_iter();
                replaces.extend(names.map(|name| name.value));
            }
            _ => {}
        });
        limit
    }

    fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &*name.value)
    }

    fn compile(self, reader: &mut Reader, index: usize) -> Option<Limit> {
        let (rate, shown) = self.how_much(reader)?;
        let kind = self
            .algorithm
            .as_ref()
            .map(|kind| kind.value)
            .unwrap_or_default();
        self.check_fit(reader, kind);
        let algorithm = match kind {
            Kind::FixedWindow => Algorithm::FixedWindow(self.anchor(reader, rate.period)?),
            Kind::SlidingLog => Algorithm::SlidingLog,
            Kind::SlidingWindow => Algorithm::SlidingWindow,
            Kind::TokenBucket => Algorithm::TokenBucket,
            Kind::LeakyBucket => Algorithm::LeakyBucket,
            Kind::LeakyQueue => Algorithm::LeakyQueue,
        };
        let most = u64::try_from(MAX_ENTRIES).unwrap_or(u64::MAX);
        if kind == Kind::SlidingLog && rate.units > most {
            let what =
                format!("a log remembers {MAX_ENTRIES} admissions; above that it is not exact");
            reader.warn(
                self.at,
                what,
                "use sliding_window or token_bucket for large limits",
            );
        }
        let burst = self.burst.as_ref().map_or(rate.units, |burst| burst.value);
        let quota = quota(reader, self.at, rate, burst)?;
        Some(Limit {
            name: self.name().map(Arc::from),
            discriminator: discriminator(self.name(), index, kind),
            shown,
            count_denied: self
                .count_denied
                .as_ref()
                // Of a slice no process knows all that was refused.
                .map_or(kind == Kind::FixedWindow && self.slice.is_none(), |on| {
                    on.value
                }),
            slice: self.slice.as_ref().map(|slice| slice.value),
            hold: self.hold.as_ref().is_some_and(|on| on.value),
            cost_unit: match self.cost_unit.as_ref().map(|unit| &*unit.value) {
                None | Some("requests") => CostUnit::Requests,
                Some("bytes") => CostUnit::Bytes,
                Some(other) => CostUnit::Named(other.into()),
            },
            ..Limit::new(algorithm, quota)
        })
    }

    /// From `rate`, or from `unit`, `requests_per_unit` and `unit_multiplier`.
    fn how_much(&self, reader: &mut Reader) -> Option<(Rate, Shown)> {
        match (&self.rate, &self.unit) {
            (Some(rate), None) => {
                for extra in [&self.requests_per_unit, &self.unit_multiplier]
                    .into_iter()
                    .flatten()
                {
                    reader.error(
                        extra.at,
                        "the rate says it already",
                        "remove one of the two",
                    );
                }
                let shown = Shown::of(rate.value.units, rate.value.period.span);
                Some((rate.value, shown))
            }
            (None, Some(unit)) => {
                let units = self
                    .requests_per_unit
                    .as_ref()
                    .map_or(0, |units| units.value);
                let times = unit_multiplier(reader, self.unit_multiplier.as_ref())?;
                rate_of(reader, unit.at, units, unit.value, times)
            }
            (Some(_), Some(unit)) => {
                reader.error(
                    unit.at,
                    "both a rate and a unit are given",
                    "remove one of the two",
                );
                None
            }
            (None, None) => {
                reader.error(self.at, "the rate is missing", units::RATE_ADVICE);
                None
            }
        }
    }

    /// Fields that mean something for some algorithms only.
    fn check_fit(&self, reader: &mut Reader, kind: Kind) {
        let fixed = kind == Kind::FixedWindow;
        let holds_burst = matches!(
            kind,
            Kind::TokenBucket | Kind::LeakyBucket | Kind::LeakyQueue
        );
        let calendar = self
            .anchor
            .as_ref()
            .is_some_and(|anchor| anchor.value == AnchorKind::Calendar);
        let mut needs = |field: &str, at: Option<Position>, fits: bool, what: &str| {
            if let Some(at) = at.filter(|_| !fits) {
                reader.field(field, |reader| {
                    reader.error(
                        at,
                        format!("only {what} has this"),
                        "remove it, or change the algorithm",
                    );
                });
            }
        };
        let at = |field: &Option<Located<bool>>| field.as_ref().map(|field| field.at);
        needs(
            "anchor",
            self.anchor.as_ref().map(|anchor| anchor.at),
            fixed,
            "fixed_window",
        );
        needs(
            "count_denied",
            at(&self.count_denied),
            fixed,
            "fixed_window",
        );
        needs(
            "hold",
            at(&self.hold),
            kind == Kind::LeakyQueue,
            "leaky_queue",
        );
        needs(
            "time_zone",
            self.time_zone.as_ref().map(|zone| zone.at),
            fixed && calendar,
            "fixed_window with `anchor: calendar`",
        );
        needs(
            "burst",
            self.burst.as_ref().map(|burst| burst.at),
            holds_burst,
            "token_bucket, leaky_bucket or leaky_queue",
        );
        let anchored = self.anchor.as_ref().map(|anchor| anchor.value);
        let sliceable = matches!(
            kind,
            Kind::FixedWindow | Kind::TokenBucket | Kind::LeakyBucket
        );
        needs(
            "slice",
            self.slice.as_ref().map(|slice| slice.at),
            sliceable && anchored != Some(AnchorKind::LastHit),
            "fixed_window (but not from the last hit), token_bucket or leaky_bucket",
        );
        if self.count_denied.as_ref().is_some_and(|on| on.value)
            && let Some(slice) = &self.slice
        {
            reader.field("slice", |reader| {
                reader.error(
                    slice.at,
                    "what is refused cannot be counted in slices",
                    "remove `count_denied` or `slice`",
                );
            });
        }
        if let Some(burst) = self.burst.as_ref().filter(|burst| burst.value == 0) {
            reader.field("burst", |reader| {
                reader.error(
                    burst.at,
                    "a burst of 0 lets nothing through",
                    "write at least 1",
                );
            });
        }
    }

    fn anchor(&self, reader: &mut Reader, period: Period) -> Option<Anchor> {
        let Some(anchor) = &self.anchor else {
            return Some(Anchor::Clock);
        };
        match anchor.value {
            AnchorKind::Clock => Some(Anchor::Clock),
            AnchorKind::FirstHit => Some(Anchor::FirstHit),
            AnchorKind::LastHit => Some(Anchor::LastHit),
            AnchorKind::Calendar => {
                let Some(unit) = period.calendar else {
                    reader.error(
                        anchor.at,
                        "a calendar window is exactly one unit long",
                        "use one minute, hour, day, week, month or year, or another anchor",
                    );
                    return None;
                };
                let name = self.time_zone.as_ref().map_or("UTC", |zone| &*zone.value);
                let Ok(zone) = jiff::tz::TimeZone::get(name) else {
                    let at = self.time_zone.as_ref().map_or(anchor.at, |zone| zone.at);
                    let what = format!("{} is no time zone", quoted(name));
                    reader.error(at, what, "write an IANA name such as Europe/Lisbon");
                    return None;
                };
                Some(Anchor::Calendar(Calendar {
                    unit,
                    zone,
                    zone_name: name.into(),
                }))
            }
        }
    }
}

/// Tells limits of one rule apart, by name or else by place, and one algorithm from another: a
/// changed algorithm starts afresh, changed numbers do not. The same in every process and version.
fn discriminator(name: Option<&str>, index: usize, kind: Kind) -> u64 {
    let mut hasher = SipHasher13::new();
    match name {
        Some(name) => hasher.write(name.as_bytes()),
        None => hasher.write_u64(u64::try_from(index).unwrap_or(u64::MAX)),
    }
    // What the name cannot end with: it is UTF-8.
    hasher.write_u8(0xff);
    let tag = KINDS.iter().find(|(_, other)| *other == kind);
    hasher.write(tag.map_or("", |(name, _)| name).as_bytes());
    // 0 is the reference's single limit.
    hasher.finish().max(1)
}

/// The names in `replaces:`.
pub(super) fn read_replaces(reader: &mut Reader, node: &Node) -> Vec<Located<Box<str>>> {
    let items = reader.list(node).iter().enumerate();
    let read = |(index, item): (usize, &Rc<Node>)| {
        let mut name = Located {
            at: item.at,
            ..Located::default()
        };
        reader.item(index, |reader| {
            reader.fields(item, &mut |reader, field, value| {
                if field == "name" {
                    reader.text(value, &mut name);
                }
            });
        });
        name
    };
    items.map(read).collect()
}
