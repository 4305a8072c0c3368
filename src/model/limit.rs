//! What a counter is held to: an algorithm and a quota.

use std::sync::Arc;

use crate::model::time::{Span, Timestamp};

/// How admissions are spread over time. The arithmetic of each is in [`crate::algorithm`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// At most `units` per window; windows start where the anchor says.
    FixedWindow(Anchor),
    /// At most `units` in any period, exactly; remembers each admission.
    SlidingLog,
    /// At most about `units` in any period, estimated from two window counts.
    SlidingWindow,
    /// A bucket of `burst` tokens that refills at `units` per period.
    TokenBucket,
    /// A bucket of `burst` capacity that drains at `units` per period: the mirror image.
    LeakyBucket,
    /// A queue of `burst` places that leaves at `units` per period: answers with a delay.
    LeakyQueue,
}

impl Algorithm {
    /// Its name in rule files.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingWindow => "sliding_window",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::LeakyQueue => "leaky_queue",
        }
    }

    /// The most that can be used at once under `quota`: a window's units, a bucket's size, a
    /// queue's places.
    pub const fn capacity(&self, quota: Quota) -> u64 {
        match self {
            Self::FixedWindow(_) | Self::SlidingLog | Self::SlidingWindow => quota.units(),
            Self::TokenBucket | Self::LeakyBucket | Self::LeakyQueue => quota.burst(),
        }
    }

    /// Whether the burst means anything to it.
    pub const fn has_burst(&self) -> bool {
        matches!(
            self,
            Self::TokenBucket | Self::LeakyBucket | Self::LeakyQueue
        )
    }
}

/// Where the windows of [`Algorithm::FixedWindow`] start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    /// At multiples of the period since the Unix epoch (as the reference service).
    #[default]
    Clock,
    /// At the first hit after the previous window ended.
    FirstHit,
    /// At the latest admitted hit: each one restarts the window (lock-outs).
    LastHit,
    /// At the calendar's minutes, hours, days, weeks (Monday), months, years in a time zone.
    Calendar(Calendar),
}

/// A calendar window: unit and time zone.
#[derive(Clone, Debug)]
pub struct Calendar {
    /// Length of a window.
    pub unit: CalendarUnit,
    /// Zone whose midnights and month ends count.
    pub zone: jiff::tz::TimeZone,
    /// IANA name of the zone, for display and comparison.
    pub zone_name: Arc<str>,
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.unit == other.unit && self.zone_name == other.zone_name
    }
}

impl Eq for Calendar {}

/// Unit of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// A minute of the clock.
    Minute,
    /// An hour of the clock.
    Hour,
    /// Midnight to midnight; 23 to 25 hours where clocks change.
    Day,
    /// Monday to Monday.
    Week,
    /// First to first.
    Month,
    /// 1 January to 1 January.
    Year,
}

/// How much per how long. Built only by [`Quota::new`], so that later arithmetic cannot overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    units: u64,
    period: Span,
    burst: u64,
}

/// Why a quota cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The period is zero.
    #[error("the period must be longer than zero")]
    NoPeriod,
    /// The period is longer than two of them can be told after the present.
    #[error("the period must be shorter than 146 years")]
    TooLong,
    /// Filling the bucket from empty takes longer than can be told after the present.
    #[error("filling the burst at this rate takes longer than 292 years")]
    TooSlow,
}

/// Half of what a [`Timestamp`] can tell, the other half is for the date: until the year 2262 no
/// window's end and no full bucket lies beyond the end of time.
const LONGEST: Span = Span::from_nanos(u64::MAX / 2);

impl Quota {
    /// `units` per `period`, with room for `burst` at once. `units` 0 refuses everything.
    pub fn new(units: u64, period: Span, burst: u64) -> Result<Self, QuotaError> {
        if period.is_zero() {
            return Err(QuotaError::NoPeriod);
        }
        if period.saturating_mul(2) > LONGEST {
            return Err(QuotaError::TooLong);
        }
        if units > 0 {
            let fill = u128::from(burst) * u128::from(period.as_nanos()) / u128::from(units);
            if fill > u128::from(LONGEST.as_nanos()) {
                return Err(QuotaError::TooSlow);
            }
        }
        Ok(Self {
            units,
            period,
            burst,
        })
    }

    /// `units` per window of `period`, without a bucket; a period of zero becomes the shortest.
    #[must_use]
    pub const fn window(units: u64, period: Span) -> Self {
        let period = if period.is_zero() {
            Span::from_nanos(1)
        } else {
            period
        };
        Self {
            units,
            period,
            burst: 0,
        }
    }

    /// `units` per `period` with a burst of the same size.
    pub fn per(units: u64, period: Span) -> Result<Self, QuotaError> {
        Self::new(units, period, units)
    }

    /// Units per period.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The period, never zero.
    pub const fn period(self) -> Span {
        self.period
    }

    /// The most at once: bucket capacity or queue length.
    pub const fn burst(self) -> u64 {
        self.burst
    }
}

/// State of one counter, the same size for every algorithm but the log, so that a key costs the
/// same however it is counted. What `a` and `b` mean is the algorithm's business.
///
/// The zero state is the fresh one. At or after `until` a state is equal to a fresh one and may be
/// forgotten without changing an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// From here on the state is as good as fresh.
    pub until: Timestamp,
    /// First word of the algorithm.
    pub a: u64,
    /// Second word of the algorithm.
    pub b: u64,
}
