//! Seeded chance.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::model::time::{Span, Timestamp};

/// How long work holds its permits, by its mean in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hold {
    /// Always the same.
    Constant(f64),
    /// Exponential.
    Exponential(f64),
    /// The sum of four exponential parts.
    Erlang4(f64),
}

impl Hold {
    /// The mean in seconds.
    pub const fn mean(self) -> f64 {
        match self {
            Self::Constant(mean) | Self::Exponential(mean) | Self::Erlang4(mean) => mean,
        }
    }

    /// The same with another mean.
    #[must_use]
    pub const fn with_mean(self, mean: f64) -> Self {
        match self {
            Self::Constant(_) => Self::Constant(mean),
            Self::Exponential(_) => Self::Exponential(mean),
            Self::Erlang4(_) => Self::Erlang4(mean),
        }
    }
}

/// One stream of chance. Different uses of one seed have different streams, so that policies meet
/// the same arrivals.
#[derive(Debug)]
pub(super) struct Random(StdRng);

impl Random {
    pub(super) fn new(seed: u64, purpose: u64) -> Self {
        // Far apart for seeds that are close.
        Self(StdRng::seed_from_u64(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ purpose,
        ))
    }

    /// Uniform in [0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        self.0.random()
    }

    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.uniform() < share
    }

    /// Exponential, in seconds.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.uniform()).ln() * mean
    }

    pub(super) fn hold(&mut self, hold: Hold) -> Span {
        Span::from_secs_f64(match hold {
            Hold::Constant(mean) => mean,
            Hold::Exponential(mean) => self.exponential(mean),
            Hold::Erlang4(mean) => (0..4).map(|_| self.exponential(mean / 4.0)).sum(),
        })
    }

    /// Poisson arrivals of `rate` per second from `start` until `end`.
    pub(super) fn arrivals(&mut self, rate: f64, start: f64, end: f64) -> Vec<Timestamp> {
        let mut at = start;
        let mut arrivals = Vec::new();
        loop {
            at += self.exponential(1.0 / rate);
            if at >= end {
                return arrivals;
            }
            arrivals.push(time(at));
        }
    }
}

/// A point in time in seconds.
pub(super) fn time(seconds: f64) -> Timestamp {
    Timestamp::ZERO + Span::from_secs_f64(seconds)
}
