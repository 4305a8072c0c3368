//! When requests come.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::model::time::Span;

/// Most requests of one experiment.
pub const MOST: usize = 2_000_000;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// After the start of the experiment.
    pub at: Span,
    /// Units that it costs.
    pub cost: u64,
}

/// Requests that come by one rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// So many, evenly over a time: the first at its beginning, none at its end.
    Burst {
        /// When it begins.
        at: Span,
        /// How many.
        count: u64,
        /// How long it takes; zero for all at once.
        over: Span,
    },
    /// Evenly, the first at the beginning of the time, none at its end.
    Uniform(Stream),
    /// At random and independently of each other, at a mean rate.
    Poisson(Stream),
    /// As a trace says: times since the start of the experiment, or dates.
    Given(Vec<Arrival>),
}

/// A rate for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Requests…
    pub units: u64,
    /// … per this long; not zero.
    pub period: Span,
    /// When it begins.
    pub from: Span,
    /// When it ends.
    pub until: Span,
}

/// A pattern and what each of its requests costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// When they come.
    pub pattern: Pattern,
    /// What each costs; [`Pattern::Given`] has costs of its own.
    pub cost: u64,
}

/// More requests than [`MOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MOST} requests")]
pub struct TooMany;

/// All requests in the order of time; of one instant, in the order of the sources.
pub fn generate(sources: &[Source], seed: u64) -> Result<Vec<Arrival>, TooMany> {
    let mut all = Vec::new();
    for (index, source) in (0..).zip(sources) {
        // Each source has random numbers of its own: adding one does not change the others.
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(index));
        let cost = source.cost;
        let mut add = |at: Span, cost: u64| {
            if all.len() >= MOST {
                return Err(TooMany);
            }
            all.push(Arrival { at, cost });
            Ok(())
        };
        match &source.pattern {
            Pattern::Burst { at, count, over } => {
                for number in 0..*count {
                    add(at.saturating_add(part(*over, number, *count)), cost)?;
                }
            }
            Pattern::Uniform(stream) => {
                for number in 0.. {
                    let at = stream
                        .from
                        .saturating_add(part(stream.period, number, stream.units));
                    if at >= stream.until {
                        break;
                    }
                    add(at, cost)?;
                }
            }
            Pattern::Poisson(stream) => {
                let mut after = 0.0;
                loop {
                    after += stream.exponential(&mut random);
                    let at = stream.from.saturating_add(Span::from_secs_f64(after));
                    if at >= stream.until {
                        break;
                    }
                    add(at, cost)?;
                }
            }
            Pattern::Given(arrivals) => {
                for arrival in arrivals {
                    add(arrival.at, arrival.cost)?;
                }
            }
        }
    }
    all.sort_by_key(|arrival| arrival.at);
    Ok(all)
}

/// `span × number ÷ of`, rounded down; the longest span when `of` is zero.
fn part(span: Span, number: u64, of: u64) -> Span {
    let product = u128::from(span.as_nanos()) * u128::from(number);
    let nanos = product.checked_div(u128::from(of));
    nanos.map_or(Span::MAX, |nanos| {
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    })
}

impl Stream {
    /// A gap of the Poisson process in seconds: −ln(1 − u) ÷ rate.
    #[expect(clippy::cast_precision_loss, reason = "the gap is random anyhow")]
    fn exponential(&self, random: &mut StdRng) -> f64 {
        let uniform: f64 = random.random();
        let mean = self.period.as_secs_f64() / self.units as f64;
        -(1.0 - uniform).ln() * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(pattern: Pattern) -> Source {
        Source { pattern, cost: 1 }
    }

    fn micros(sources: &[Source], seed: u64) -> Vec<u64> {
        let arrivals = generate(sources, seed).unwrap();
        arrivals
            .iter()
            .map(|arrival| arrival.at.as_nanos() / 1_000)
            .collect()
    }

    #[test]
    fn a_burst_is_even_and_ends_before_its_end() {
        let burst = Pattern::Burst {
            at: Span::from_millis(100),
            count: 4,
            over: Span::from_millis(100),
        };
        assert_eq!(
            micros(&[source(burst)], 0),
            [100_000, 125_000, 150_000, 175_000]
        );
        let at_once = Pattern::Burst {
            at: Span::from_millis(1),
            count: 3,
            over: Span::ZERO,
        };
        assert_eq!(micros(&[source(at_once)], 0), [1_000; 3]);
    }

    #[test]
    fn uniform_arrivals_do_not_drift() {
        let thirds = Stream {
            units: 3,
            period: Span::from_secs(1),
            from: Span::from_secs(1),
            until: Span::from_secs(1_000_001),
        };
        // A third of a second has no whole number of nanoseconds; the millionth second still
        // begins with a request.
        let all = generate(
            &[source(Pattern::Uniform(Stream {
                until: Span::from_secs(3),
                ..thirds
            }))],
            0,
        );
        let nanos: Vec<u64> = all
            .unwrap()
            .iter()
            .map(|arrival| arrival.at.as_nanos())
            .collect();
        let want = [
            1_000_000_000,
            1_333_333_333,
            1_666_666_666,
            2_000_000_000,
            2_333_333_333,
            2_666_666_666,
        ];
        assert_eq!(nanos, want);
        let far = Stream { units: 1, ..thirds };
        let all = generate(&[source(Pattern::Uniform(far))], 0).unwrap();
        assert_eq!(all.len(), 1_000_000);
        assert_eq!(all[999_999].at, Span::from_secs(1_000_000));
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_the_spread_and_depend_on_the_seed_alone() {
        let stream = Stream {
            units: 100,
            period: Span::from_secs(1),
            from: Span::ZERO,
            until: Span::from_secs(1_000),
        };
        let all = micros(&[source(Pattern::Poisson(stream))], 7);
        assert_eq!(all, micros(&[source(Pattern::Poisson(stream))], 7));
        assert_ne!(all, micros(&[source(Pattern::Poisson(stream))], 8));
        // 100,000 expected, standard deviation 316; five of them.
        assert!((98_400..=101_600).contains(&all.len()), "{}", all.len());
        // Of exponential gaps a share of 1/e is longer than their mean.
        let longer = all
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > 10_000)
            .count();
        assert!((35_500..=38_000).contains(&longer), "{longer}");
    }

    #[test]
    fn sources_are_merged_by_time_and_bounded() {
        let burst = |at, cost| Source {
            pattern: Pattern::Burst {
                at: Span::from_millis(at),
                count: 1,
                over: Span::ZERO,
            },
            cost,
        };
        let arrivals = generate(&[burst(2, 1), burst(1, 2), burst(2, 3)], 0).unwrap();
        let costs: Vec<u64> = arrivals.iter().map(|arrival| arrival.cost).collect();
        assert_eq!(costs, [2, 1, 3]);
        let endless = Pattern::Burst {
            at: Span::ZERO,
            count: u64::MAX,
            over: Span::ZERO,
        };
        assert_eq!(generate(&[source(endless)], 0), Err(TooMany));
        let nobody = Stream {
            units: 0,
            period: Span::from_secs(1),
            from: Span::ZERO,
            until: Span::from_secs(1),
        };
        assert!(micros(&[source(Pattern::Uniform(nobody))], 0).is_empty());
        assert!(micros(&[source(Pattern::Poisson(nobody))], 0).is_empty());
    }
}
