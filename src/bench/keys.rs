//! Which key a call is about.

use std::{num::NonZeroU64, str::FromStr};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use rand_distr::{Distribution as _, Zipf};
use serde::Serialize;

/// How often each of the keys 0, 1, … comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Every key as often as any other.
    #[default]
    Uniform,
    /// Key n in proportion to (n + 1)^−exponent.
    Zipf {
        /// Greater than 0; 1 is what many natural populations show.
        exponent: f64,
    },
    /// Key 0 with this share, the others evenly.
    Hot {
        /// From 0 to 1.
        share: f64,
    },
}

impl FromStr for Distribution {
    type Err = String;

    /// `uniform`, `zipf`, `zipf:1.2`, `hot`, `hot:0.9`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => {
                let number = parameter.parse::<f64>().ok().filter(|n| n.is_finite());
                let number = number.ok_or_else(|| format!("{parameter:?} is not a number"))?;
                (name, Some(number))
            }
            None => (text, None),
        };
        match (name, parameter) {
            ("uniform", None) => Ok(Self::Uniform),
            ("zipf", exponent) if exponent.is_none_or(|exponent| exponent > 0.0) => {
                Ok(Self::Zipf {
                    exponent: exponent.unwrap_or(1.0),
                })
            }
            ("zipf", _) => Err("the exponent of zipf must be greater than 0".to_owned()),
            ("hot", share) if share.is_none_or(|share| (0.0..=1.0).contains(&share)) => {
                Ok(Self::Hot {
                    share: share.unwrap_or(0.9),
                })
            }
            ("hot", _) => Err("the share of the hot key must be from 0 to 1".to_owned()),
            _ => Err(format!(
                "{text:?} is none of uniform, zipf, zipf:EXPONENT, hot, hot:SHARE"
            )),
        }
    }
}

/// Draws keys.
#[derive(Debug)]
pub struct Keys {
    rng: StdRng,
    count: NonZeroU64,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Uniform,
    Zipf(Zipf<f64>),
    Hot(f64),
}

impl Keys {
    /// Keys 0 to `count` − 1.
    #[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 keys")]
    pub fn new(distribution: Distribution, count: NonZeroU64, seed: u64) -> Self {
        let how = match distribution {
            Distribution::Uniform => How::Uniform,
            // An exponent that parsed is one that can be; 0 would be the uniform one.
            Distribution::Zipf { exponent } => {
                Zipf::new(count.get() as f64, exponent).map_or(How::Uniform, How::Zipf)
            }
            Distribution::Hot { share } => How::Hot(share.clamp(0.0, 1.0)),
        };
        Self {
            // Another stream than the schedule's, which has the same seed.
            rng: StdRng::seed_from_u64(seed ^ 0x6b65_7973),
            count,
            how,
        }
    }

    /// The next key.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 1 to count"
    )]
    pub fn draw(&mut self) -> u64 {
        let count = self.count.get();
        match self.how {
            How::Uniform => self.rng.random_range(0..count),
            How::Zipf(zipf) => (zipf.sample(&mut self.rng) as u64).clamp(1, count) - 1,
            How::Hot(share) => {
                if count == 1 || self.rng.random_bool(share) {
                    0
                } else {
                    self.rng.random_range(1..count)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of ten keys comes in 100,000 draws.
    fn counts(distribution: &str) -> [u32; 10] {
        let distribution = distribution.parse().unwrap();
        let mut keys = Keys::new(distribution, NonZeroU64::new(10).unwrap(), 1);
        let mut counts = [0; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(keys.draw()).unwrap()] += 1;
        }
        counts
    }

    /// Five standard deviations of a binomial count.
    fn near(count: u32, probability: f64) -> bool {
        let mean = 100_000.0 * probability;
        (f64::from(count) - mean).abs() <= 5.0 * (mean * (1.0 - probability)).sqrt()
    }

    #[test]
    fn uniform_is_even() {
        assert!(counts("uniform").iter().all(|count| near(*count, 0.1)));
    }

    #[test]
    fn zipf_falls_with_the_rank() {
        let harmonic: f64 = (1..=10).map(|rank| 1.0 / f64::from(rank)).sum();
        for (rank, count) in (1..=10).zip(counts("zipf")) {
            assert!(
                near(count, 1.0 / f64::from(rank) / harmonic),
                "{rank}: {count}"
            );
        }
    }

    #[test]
    fn hot_has_its_share_and_the_rest_is_even() {
        let counts = counts("hot:0.7");
        assert!(near(counts[0], 0.7));
        assert!(counts[1..].iter().all(|count| near(*count, 0.3 / 9.0)));
    }

    #[test]
    fn what_is_not_a_distribution_says_why() {
        for (text, why) in [
            ("normal", "none of"),
            ("uniform:2", "none of"),
            ("zipf:0", "greater than 0"),
            ("zipf:x", "not a number"),
            ("hot:1.5", "from 0 to 1"),
            ("hot:NaN", "not a number"),
        ] {
            let error = text.parse::<Distribution>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn one_key_is_enough() {
        for distribution in ["uniform", "zipf", "hot:0"] {
            let mut keys = Keys::new(distribution.parse().unwrap(), NonZeroU64::MIN, 1);
            assert_eq!(keys.draw(), 0, "{distribution}");
        }
    }
}
