//! Time: one integer type, one door.
//!
//! Every decision takes its `now` as an argument. Only [`Clock`] reads the machine's clocks, and
//! it is read once per request. Tests hold a [`ManualClock`] and move it by hand.
//!
//! There are two time lines. *Wall* time is aligned with the calendar: windows and resets use it.
//! *Steady* time only measures: leases use it, so that a step of the machine's date neither ends
//! nor prolongs one. Both come out of one reading; the wall line follows the machine's date by a
//! bounded correction (see [`Clock::follow`]) and never runs backwards.
//!
//! That reading is of the processor's counter where the kernel itself tells time by it, because
//! asking the kernel takes two to three times as long and a decision is short. The counter's line
//! is kept to the kernel's monotonic clock, and given up for it when the two disagree.
//!
//! * this file: spans and points in time
//! * `clock`: the two lines, and the manual clock
//! * `kernel`: the kernel's clocks
//! * `counter`: the processor's counter: whether it is trusted, reading it, following
//! * `line`: the arithmetic of that, without any clock
//! * `latch`: how the threads that read the line learn that it was corrected

mod clock;
mod counter;
mod kernel;
mod latch;
mod line;

pub use self::clock::{Clock, ManualClock, SLEW_PER_FOLLOW};

use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

/// Nanoseconds in a second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A length of time in whole nanoseconds; at most 584 years. Arithmetic saturates.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span; stands for "for ever" where a rule says so.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of `seconds` seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up: a hint never says too little.
    pub const fn as_millis_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whole seconds, rounded up: a hint never says too little.
    pub const fn as_secs_up(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SECOND)
    }

    /// Seconds as a float, for estimates and metrics only; never for a decision.
    #[expect(clippy::cast_precision_loss, reason = "estimates do not need 64 bits")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Rounds a float of seconds to nanoseconds; negative and NaN become zero.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float to integer conversion saturates, which is what we want"
    )]
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as u64)
    }

    /// True for a span of no time.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `self + other`, at most [`Span::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// `self − other`, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Half of it, rounded down.
    #[must_use]
    pub const fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// `self × factor`, at most [`Span::MAX`].
    #[must_use]
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.0)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from(*self).fmt(f)
    }
}

/// A point in time: nanoseconds since the Unix epoch on the wall line, or since an arbitrary
/// start on the steady line. Reaches to the year 2554; arithmetic saturates.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start of the line; on the wall line 1970-01-01T00:00:00Z.
    pub const ZERO: Self = Self(0);
    /// The end of time; stands for "never".
    pub const MAX: Self = Self(u64::MAX);

    /// A point `nanos` nanoseconds after the start of the line.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A point `seconds` seconds after the start of the line.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(NANOS_PER_SECOND))
    }

    /// Nanoseconds since the start of the line.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the start of the line, rounded down.
    pub const fn as_secs(self) -> u64 {
        self.0 / NANOS_PER_SECOND
    }

    /// How long after `earlier` this is; zero when it is not.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The latest multiple of `period` that does not lie after this; this itself for a period of
    /// zero.
    #[must_use]
    pub const fn floor(self, period: Span) -> Self {
        match self.0.checked_rem(period.0) {
            Some(into) => Self(self.0 - into),
            None => self,
        }
    }

    /// How long from this until `later`; zero when that has passed.
    pub const fn until(self, later: Self) -> Span {
        later.since(self)
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;

    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}",
            self.0 / NANOS_PER_SECOND,
            self.0 % NANOS_PER_SECOND
        )
    }
}

/// One reading of the clock, on both lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Aligned with the calendar; for windows, buckets and resets.
    pub wall: Timestamp,
    /// Only measures; for leases and waiting.
    pub steady: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_round_up_and_saturate() {
        assert_eq!(Span::from_nanos(1).as_millis_up(), 1);
        assert_eq!(Span::from_millis(1001).as_secs_up(), 2);
        assert_eq!(Span::MAX.saturating_add(Span::from_secs(1)), Span::MAX);
        assert_eq!(
            Timestamp::from_secs(1).since(Timestamp::from_secs(2)),
            Span::ZERO
        );
        assert_eq!(Span::from_secs_f64(-1.0), Span::ZERO);
    }
}
