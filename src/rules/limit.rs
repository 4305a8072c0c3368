//! A limit of a rule: what its counters are held to, and how it is shown.

use std::{fmt, sync::Arc};

use crate::model::{
    limit::{Algorithm, Anchor, Quota},
    request::Unit,
    time::{NANOS_PER_SECOND, Span},
};

/// One limit of a rule. A rule of the reference has exactly one, ours may have several.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Target of `replaces`, and what refusals call it.
    pub name: Option<Arc<str>>,
    /// How it counts.
    pub algorithm: Algorithm,
    /// How much per how long.
    pub quota: Quota,
    /// How protocol answers show it.
    pub shown: Shown,
    /// Whether refused hits are counted under independent stacking. The reference counts them, so
    /// that is the default of `fixed_window`; other algorithms never do.
    pub count_denied: bool,
    /// The shaper only: `ShouldRateLimit` waits for the slot instead of refusing.
    pub hold: bool,
    /// A process may take units ahead from a store that is shared, and serve them from memory.
    pub slice: Option<Slice>,
    /// What one unit of cost is.
    pub cost_unit: CostUnit,
    /// Part of the counter key: tells the limits of one rule apart, and one algorithm from
    /// another. 0 for the reference's single `rate_limit`.
    pub discriminator: u64,
    /// Grows when a reload changes the quota of this limit, so that a stored state can be read
    /// with the quota it was written under.
    pub version: u32,
    /// Earlier quotas by version, newest first; bounded.
    pub history: Arc<[(u32, Algorithm, Quota)]>,
}

impl Limit {
    /// A limit as `config` makes it of a rule without further words.
    pub fn new(algorithm: Algorithm, quota: Quota) -> Self {
        Self {
            name: None,
            count_denied: matches!(algorithm, Algorithm::FixedWindow(_)),
            algorithm,
            quota,
            shown: Shown::of(quota.units(), quota.period()),
            hold: false,
            slice: None,
            cost_unit: CostUnit::default(),
            discriminator: 0,
            version: 0,
            history: Arc::default(),
        }
    }

    /// The most that can be used at once: a window's units, a bucket's size, a queue's places.
    pub const fn capacity(&self) -> u64 {
        self.algorithm.capacity(self.quota)
    }

    /// This limit with the numbers of another; a burst of its own stays, unless it would
    /// take too long to fill.
    #[must_use]
    pub fn with_numbers(&self, numbers: &Self) -> Self {
        let (units, period) = (numbers.quota.units(), numbers.quota.period());
        let burst = match self.quota.burst() {
            burst if burst == self.quota.units() => units,
            burst => burst,
        };
        Self {
            quota: Quota::new(units, period, burst)
                .or_else(|_| Quota::per(units, period))
                .unwrap_or(numbers.quota),
            shown: numbers.shown,
            ..self.clone()
        }
    }

    /// Whether the whole capacity takes longer than a minute to come back: what is used is worth
    /// keeping over a restart. [`Limit::window`] without its division.
    pub fn is_lasting(&self) -> bool {
        const MINUTE: u128 = 60 * NANOS_PER_SECOND as u128;
        let capacity = u128::from(self.capacity());
        capacity * u128::from(self.quota.period().as_nanos())
            > u128::from(self.quota.units()) * MINUTE
    }

    /// How long the whole capacity takes to come back: the window, or an empty bucket's time to
    /// fill. Rounded up; the period where nothing ever comes back.
    pub fn window(&self) -> Span {
        let (units, capacity) = (u128::from(self.quota.units()), u128::from(self.capacity()));
        if units == 0 {
            return self.quota.period();
        }
        let nanos = (capacity * u128::from(self.quota.period().as_nanos())).div_ceil(units);
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Much as a rule file says it: `600/minute`, `3/5d sliding_log`, `5/second token_bucket burst 40`.
/// A fixed window of the clock, the plain case, is not named.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.quota.units())?;
        write_period(f, self.quota.period())?;
        match &self.algorithm {
            Algorithm::FixedWindow(Anchor::Clock) => Ok(()),
            Algorithm::FixedWindow(Anchor::FirstHit) => f.write_str(" fixed_window from first hit"),
            Algorithm::FixedWindow(Anchor::LastHit) => f.write_str(" fixed_window from last hit"),
            Algorithm::FixedWindow(Anchor::Calendar(calendar)) => {
                write!(f, " fixed_window in {}", calendar.zone_name)
            }
            algorithm if algorithm.has_burst() => {
                write!(f, " {} burst {}", algorithm.name(), self.quota.burst())
            }
            algorithm => write!(f, " {}", algorithm.name()),
        }
    }
}

/// `minute`, `10s`, `5d`: one of a unit by its name, several by its letter.
fn write_period(f: &mut fmt::Formatter<'_>, period: Span) -> fmt::Result {
    const DAY: u64 = 86_400 * NANOS_PER_SECOND;
    let (name, letter, nanos) = [
        ("day", "d", DAY),
        ("hour", "h", DAY / 24),
        ("minute", "m", DAY / 1_440),
        ("second", "s", NANOS_PER_SECOND),
        ("millisecond", "ms", 1_000_000),
    ]
    .into_iter()
    .find(|(_, _, nanos)| period.as_nanos().is_multiple_of(*nanos))
    .unwrap_or(("nanosecond", "ns", 1));
    match period.as_nanos() / nanos {
        1 => f.write_str(name),
        count => write!(f, "{count}{letter}"),
    }
}

/// How units of a limit are taken ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Most units of one block; none: as many as are used in `max_staleness`.
    pub size: Option<u64>,
    /// How long a block is held at most.
    pub max_staleness: Span,
}

/// How protocol answers show a limit (`current_limit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// `requests_per_unit`, clamped to 32 bits.
    pub requests_per_unit: u32,
    /// The unit, when the period is a whole number of one.
    pub unit: Option<Unit>,
    /// The period in units.
    pub unit_multiplier: u32,
}

impl Shown {
    /// The largest unit that divides `period`; none for periods below or between seconds.
    pub fn of(units: u64, period: Span) -> Self {
        let requests_per_unit = u32::try_from(units).unwrap_or(u32::MAX);
        let fitting = Unit::ALL.into_iter().rev().find_map(|unit| {
            let length = unit.span().as_nanos();
            let whole = period.as_nanos().is_multiple_of(length);
            let times = u32::try_from(period.as_nanos() / length).ok()?;
            (whole && times > 0).then_some((unit, times))
        });
        match fitting {
            Some((unit, unit_multiplier)) => Self {
                requests_per_unit,
                unit: Some(unit),
                unit_multiplier,
            },
            None => Self {
                requests_per_unit,
                unit: None,
                unit_multiplier: 1,
            },
        }
    }
}

/// What one unit of cost is, for headers and displays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CostUnit {
    /// Requests.
    #[default]
    Requests,
    /// Bytes of content.
    Bytes,
    /// Anything else, by name.
    Named(Arc<str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(algorithm: Algorithm, units: u64, period: Span, burst: u64) -> Limit {
        Limit::new(algorithm, Quota::new(units, period, burst).unwrap())
    }

    #[test]
    fn numbers_of_another_limit_leave_the_rest_and_a_burst_of_its_own() {
        let second = Span::from_secs(1);
        let year = Span::from_secs(31_536_000);
        let shown = |burst, (units, period)| {
            let numbers = limit(Algorithm::FixedWindow(Anchor::Clock), units, period, 0);
            let own = limit(Algorithm::TokenBucket, 500, second, burst);
            own.with_numbers(&numbers).to_string()
        };
        assert_eq!(shown(500, (9, second)), "9/second token_bucket burst 9");
        assert_eq!(shown(40, (9, second)), "9/second token_bucket burst 40");
        // Forty years' worth fills; four hundred years' does not.
        assert_eq!(shown(40, (1, year)), "1/365d token_bucket burst 40");
        assert_eq!(shown(400, (1, year)), "1/365d token_bucket burst 1");
    }

    #[test]
    fn limits_are_shown_much_as_they_are_written() {
        let clock = || Algorithm::FixedWindow(Anchor::Clock);
        for (limit, want) in [
            (limit(clock(), 600, Span::from_secs(60), 0), "600/minute"),
            (limit(clock(), 20, Span::from_secs(10), 0), "20/10s"),
            (
                limit(Algorithm::SlidingLog, 3, Span::from_secs(432_000), 0),
                "3/5d sliding_log",
            ),
            (
                limit(Algorithm::TokenBucket, 5, Span::from_secs(1), 40),
                "5/second token_bucket burst 40",
            ),
            (
                limit(Algorithm::SlidingWindow, 1, Span::from_nanos(1_500_000), 0),
                "1/1500000ns sliding_window",
            ),
        ] {
            assert_eq!(limit.to_string(), want);
        }
    }
}
