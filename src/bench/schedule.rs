//! When calls are due.

use std::{num::NonZeroU64, str::FromStr};

use rand::{SeedableRng as _, rngs::StdRng};
use rand_distr::{Distribution as _, Exp1};

use serde::Serialize;

use crate::model::time::{NANOS_PER_SECOND, Span};

/// How calls are spread over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly: one every 1/rate seconds.
    #[default]
    Uniform,
    /// As from many independent callers: exponential gaps of 1/rate seconds on average.
    Poisson,
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "uniform" => Ok(Self::Uniform),
            "poisson" => Ok(Self::Poisson),
            _ => Err(format!("{text:?} is neither uniform nor poisson")),
        }
    }
}

/// One of the lanes that share a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which one, from 0.
    pub index: usize,
    /// Of how many; at least 1.
    pub of: usize,
}

impl Share {
    /// A seed of its own for every lane.
    pub fn seed(self, seed: u64) -> u64 {
        seed.wrapping_add(self.index as u64)
    }
}

/// The instants of one lane's calls, counted from a common start, in order and without an end.
#[derive(Debug)]
pub enum Schedule {
    /// Calls n = index, index + lanes, … of the whole, each due at n/rate.
    Uniform {
        /// Number of the next call among the calls of all lanes.
        next: u64,
        /// Number of lanes.
        step: u64,
        /// Calls per second of all lanes.
        rate: NonZeroU64,
    },
    /// A Poisson process of rate/lanes; together the lanes are one of the whole rate.
    Poisson {
        /// Where the gaps come from.
        rng: Box<StdRng>,
        /// Mean gap in nanoseconds.
        gap: f64,
        /// The latest instant, in nanoseconds.
        at: f64,
    },
}

impl Schedule {
    /// The calls of `share` when all lanes together send `rate` per second.
    #[expect(clippy::cast_precision_loss, reason = "a mean does not need 64 bits")]
    pub fn new(arrivals: Arrivals, rate: NonZeroU64, share: Share, seed: u64) -> Self {
        match arrivals {
            Arrivals::Uniform => Self::Uniform {
                next: share.index as u64,
                step: share.of as u64,
                rate,
            },
            Arrivals::Poisson => Self::Poisson {
                rng: Box::new(StdRng::seed_from_u64(share.seed(seed))),
                gap: NANOS_PER_SECOND as f64 * share.of as f64 / rate.get() as f64,
                at: 0.0,
            },
        }
    }
}

impl Iterator for Schedule {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        match self {
            Self::Uniform { next, step, rate } => {
                let nanos =
                    u128::from(*next) * u128::from(NANOS_PER_SECOND) / u128::from(rate.get());
                *next += *step;
                u64::try_from(nanos).ok().map(Span::from_nanos)
            }
            Self::Poisson { rng, gap, at } => {
                let drawn: f64 = Exp1.sample(rng);
                *at += drawn * *gap;
                Some(Span::from_secs_f64(*at / 1e9))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instants(arrivals: Arrivals, rate: u64, lanes: usize, until: Span) -> Vec<Span> {
        let rate = NonZeroU64::new(rate).unwrap();
        let mut all: Vec<_> = (0..lanes)
            .flat_map(|index| {
                Schedule::new(arrivals, rate, Share { index, of: lanes }, 7)
                    .take_while(|due| *due < until)
            })
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn lanes_together_send_evenly_and_exactly_the_rate() {
        for lanes in [1, 2, 3] {
            let due = instants(Arrivals::Uniform, 3, lanes, Span::from_secs(2));
            let nanos: Vec<_> = due.iter().map(|due| due.as_nanos()).collect();
            let third = 333_333_333;
            let expected = [
                0,
                third,
                2 * third,
                1_000_000_000,
                1_333_333_333,
                1_666_666_666,
            ];
            assert_eq!(nanos, expected, "{lanes} lanes");
        }
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_deviation_of_their_rate() {
        let count = 20_000_u32;
        for lanes in [1, 4] {
            let due = instants(Arrivals::Poisson, 1_000, lanes, Span::from_secs(20));
            // Four standard deviations of a Poisson count of 20,000.
            let surplus = due.len().abs_diff(count as usize);
            assert!(surplus < 566, "{lanes} lanes: {}", due.len());
            let gaps = due
                .windows(2)
                .map(|pair| (pair[1].as_secs_f64() - pair[0].as_secs_f64()) * 1e3);
            let n = f64::from(u32::try_from(due.len() - 1).unwrap());
            let mean = gaps.clone().sum::<f64>() / n;
            let variance = gaps.map(|gap| (gap - mean).powi(2)).sum::<f64>() / n;
            // An exponential distribution deviates by its mean.
            assert!(
                (variance.sqrt() / mean - 1.0).abs() < 0.03,
                "{lanes} lanes: {mean} {variance}"
            );
        }
    }

    #[test]
    fn a_seed_gives_the_same_instants_again() {
        let until = Span::from_secs(1);
        let one = instants(Arrivals::Poisson, 100, 2, until);
        assert_eq!(one, instants(Arrivals::Poisson, 100, 2, until));
    }
}
