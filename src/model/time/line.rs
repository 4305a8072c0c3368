//! The line that a counter draws, and how it is kept to the monotonic clock. Only arithmetic: every
//! reading is an argument.
//!
//! The line is made of straight pieces, each beginning where the last one ended. A check a second
//! or so compares it with the monotonic clock, measures how fast the counter runs over the time
//! since the last check, and begins a piece of that rate, a little less or more so that what the
//! line is off vanishes over the next [`HORIZON`]. What is off by more than the kernel's steering
//! can explain is no drift: the counter is given up for good.

use std::{cell::Cell, fmt};

use super::{Span, latch::WORDS};

/// Rates are nanoseconds per tick in units of 2^-32.
const RATE_BITS: u32 = 32;

/// Over how long a deviation is steered out, at least. Longer when checks were further apart lately:
/// one that comes after twice that time finds the line further off on the other side.
const HORIZON: u64 = Span::from_secs(4).as_nanos();

/// Checks that follow closer change nothing: too short to measure a rate by.
const SHORTEST: u64 = Span::from_millis(100).as_nanos();

/// Readings with more than this between them, in nanoseconds, are too coarse to steer by: the thread
/// was interrupted. Undisturbed it is less than a hundred.
const CLOSE: u64 = 5_000;

/// The kernel's own clock is steered by at most 500 ppm either way (`MAXFREQ` in
/// `include/linux/timex.h`, see `clock_adjtime(2)`), so between two checks its rate changes by at
/// most a thousandth. Calibration is off by tens of ppm.
const STEERING: u64 = 1_000;

/// What the line may be off beside that: what an earlier change left to be steered out.
const UNDER_WAY: u64 = Span::from_millis(1).as_nanos();

/// Both clocks, read at the same moment or nearly so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Of the counter.
    pub(super) ticks: u64,
    /// Of the monotonic clock, in nanoseconds.
    pub(super) monotonic: u64,
    /// How many nanoseconds may lie between the two: one cannot read both at once.
    pub(super) apart: u64,
}

/// One straight piece of the line; it has no end of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where it begins, in ticks.
    from: u64,
    /// The line there, in nanoseconds of the monotonic clock.
    at: u64,
    /// Never zero.
    rate: u64,
}

impl Piece {
    /// The line at `ticks`; before its beginning it stands still.
    #[inline]
    fn at(self, ticks: u64) -> u64 {
        let since = u128::from(ticks.saturating_sub(self.from));
        let nanos = (since * u128::from(self.rate)) >> RATE_BITS;
        self.at
            .saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// How the line goes on from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// With the counter.
    Counter(Piece),
    /// With the monotonic clock, and so many nanoseconds ahead of it: where the line was ahead when
    /// the counter was given up.
    Monotonic { ahead: u64 },
}

impl Course {
    /// The line now. Reads that one of the two clocks that it goes with.
    #[inline]
    pub(super) fn now(self, ticks: impl FnOnce() -> u64, monotonic: impl FnOnce() -> u64) -> u64 {
        match self {
            Self::Counter(piece) => piece.at(ticks()),
            Self::Monotonic { ahead } => monotonic().saturating_add(ahead),
        }
    }

    /// As the latch keeps it.
    pub(super) fn words(self) -> [u64; WORDS] {
        match self {
            Self::Counter(Piece { from, at, rate }) => [from, at, rate],
            Self::Monotonic { ahead } => [0, ahead, 0],
        }
    }

    #[inline]
    pub(super) fn from_words([from, at, rate]: [u64; WORDS]) -> Self {
        match rate {
            0 => Self::Monotonic { ahead: at },
            rate => Self::Counter(Piece { from, at, rate }),
        }
    }
}

/// `line`, or the `latest` that its reader was told if that is more. A correction begins where the
/// line was when it was computed and takes effect a moment later, and a counter that was reset is
/// behind until the next check: a reader must see neither.
#[inline]
pub(super) fn never_back(latest: &Cell<u64>, line: u64) -> u64 {
    let line = line.max(latest.get());
    latest.set(line);
    line
}

/// Keeps a line to the monotonic clock.
#[derive(Debug)]
pub(super) struct Keeper {
    course: Course,
    last: Reading,
    /// How long it was between two checks lately, at most.
    pause: u64,
}

impl Keeper {
    /// The line begins at `reading`; a tick takes `rate` × 2^-32 ns, as far as is known. `None` for a
    /// rate that no counter has.
    pub(super) fn begin(reading: Reading, rate: u64) -> Option<Self> {
        let piece = Piece {
            from: reading.ticks,
            at: reading.monotonic,
            rate,
        };
        (rate > 0).then_some(Self {
            course: Course::Counter(piece),
            last: reading,
            pause: 0,
        })
    }

    pub(super) fn course(&self) -> Course {
        self.course
    }

    /// Compares the line with the monotonic clock and corrects its course; to be called every
    /// second or so. Says so when the counter was given up.
    pub(super) fn check(&mut self, reading: Reading) -> Result<(), Doubt> {
        let Course::Counter(piece) = self.course else {
            return Ok(());
        };
        let line = piece.at(reading.ticks);
        let passed = reading.monotonic.saturating_sub(self.last.monotonic);
        let off = line.abs_diff(reading.monotonic);
        if off > UNDER_WAY + passed / STEERING + reading.apart {
            self.give_up(reading);
            return Err(Doubt::Apart {
                ahead: line > reading.monotonic,
                off: Span::from_nanos(off),
                passed: Span::from_nanos(passed),
            });
        }
        if passed < SHORTEST || reading.apart > CLOSE {
            return Ok(());
        }
        // `off` is small beside `passed`, so the counter has moved and no rate comes out as zero.
        let ticks = u128::from(reading.ticks.saturating_sub(self.last.ticks)).max(1);
        self.pause = passed.max(self.pause - self.pause / 64);
        let horizon = HORIZON.max(self.pause);
        let towards = if line > reading.monotonic {
            horizon - off
        } else {
            horizon + off
        };
        let measured = (u128::from(passed) << RATE_BITS) / ticks;
        let rate = measured * u128::from(towards) / u128::from(horizon);
        self.course = Course::Counter(Piece {
            from: reading.ticks,
            at: line,
            rate: u64::try_from(rate).unwrap_or(u64::MAX).max(1),
        });
        self.last = reading;
        Ok(())
    }

    /// From here on the line goes with the monotonic clock: from where that is, or from where the
    /// line is if that is later.
    pub(super) fn give_up(&mut self, reading: Reading) {
        if let Course::Counter(piece) = self.course {
            let line = piece.at(reading.ticks);
            let ahead = line.saturating_sub(reading.monotonic);
            self.course = Course::Monotonic { ahead };
        }
    }
}

/// Why a counter is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The counter jumped, was reset, stood still, or runs at another rate than it did.
    Apart {
        /// The line, of the monotonic clock.
        ahead: bool,
        off: Span,
        /// Since the last check.
        passed: Span,
    },
    /// The kernel tells time by another one now.
    Kernel(String),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apart { ahead, off, passed } => {
                let side = if *ahead { "ahead of" } else { "behind" };
                write!(
                    f,
                    "it is {off:?} {side} the monotonic clock, {passed:?} after they agreed"
                )
            }
            Self::Kernel(instead) => write!(f, "the kernel's clock source is {instead:?} now"),
        }
    }
}

#[cfg(test)]
mod tests;
