//! What a rate showed, and who was the limit.

use std::{collections::BTreeMap, fmt, num::NonZeroU64};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    bench::record::{LATE, Record},
    model::time::Span,
};

pub use crate::bench::probe::Probed;

/// The quantiles of tables, with their names.
pub const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

/// Index of the 99th percentile in [`QUANTILES`].
pub(super) const P99: usize = 2;

/// Share of late sends above which the generator was the limit, when its lateness also is most of
/// a quantile up to the 99th.
const TOO_MANY_LATE: f64 = 0.01;
/// Share of its time that a lane's thread can be on a CPU without being the limit.
const TOO_BUSY: f64 = 0.95;
/// Share of the rate that has to be answered within the measured time.
const KEPT_UP: f64 = 0.99;

/// One measured rate.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Calls per second that were asked for.
    pub rate: u64,
    /// Answers per second that came within the measured time.
    pub answered_per_second: f64,
    /// Calls that were due within the measured time.
    pub scheduled: u64,
    /// Answers that let the call pass: OK, or a lease.
    pub passed: u64,
    /// Answers that refuse.
    pub refused: u64,
    /// Answers that are neither.
    pub other: u64,
    /// Leases that were given back.
    pub released: u64,
    /// Calls that failed, and leases that were not taken back, by reason.
    pub failures: BTreeMap<String, u64>,
    /// Calls without an answer when the drain was over.
    pub unanswered: u64,
    /// Calls held back by `max_in_flight` until the drain was over.
    pub unsent: u64,
    /// Calls that the generator sent more than a millisecond after it could have.
    pub late: u64,
    /// Connections that ended and were opened again.
    pub reopened: u64,
    /// Share of its time for which the busiest lane was on a CPU.
    pub generator_busy: f64,
    /// Who was the limit.
    pub limit: Limit,
    /// From the scheduled instant to the answer. Calls that failed are not in it, calls without an
    /// answer are in it with their waiting.
    pub latency: Latencies,
    /// From the instant a call was written to its answer: without waiting for its turn.
    pub from_send: Latencies,
    /// From the instant a lease was wanted back to the answer of its release.
    pub release: Latencies,
    /// What the generator added to `latency` by being late.
    pub lag: Latencies,
}

/// Who could not do more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The rate was sent and answered.
    None,
    /// The server did not answer at this rate.
    Target,
    /// The generator did not send at this rate: latencies are its own.
    Generator,
}

/// A distribution of times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latencies {
    /// Number of values.
    pub count: u64,
    /// Mean in microseconds.
    pub mean: f64,
    /// Values in microseconds in the order of [`QUANTILES`]; empty without values.
    pub quantiles: Vec<f64>,
    /// Quantile and value in microseconds, ever denser towards 1, for drawing.
    pub curve: Vec<(f64, f64)>,
}

impl StepReport {
    #[expect(clippy::cast_precision_loss, reason = "rates for people")]
    pub(super) fn new(rate: NonZeroU64, duration: Span, record: &Record) -> Self {
        let seconds = duration.as_secs_f64();
        let answered_per_second = record.answered_within as f64 / seconds;
        let failures = record.failures.iter();
        let mut report = Self {
            rate: rate.get(),
            answered_per_second,
            scheduled: record.scheduled,
            passed: record.passed,
            refused: record.refused,
            other: record.other,
            released: record.released,
            failures: failures
                .map(|(why, count)| (why.to_string(), *count))
                .collect(),
            unanswered: record.unanswered,
            unsent: record.unsent,
            late: record.late,
            reopened: record.reopened,
            generator_busy: record.busy_share(),
            limit: Limit::None,
            latency: Latencies::of(&record.latency),
            from_send: Latencies::of(&record.from_send),
            release: Latencies::of(&record.release),
            lag: Latencies::of(&record.lag),
        };
        report.limit = report.judge(seconds);
        report
    }

    /// Calls that were sent and failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Whether more than half of a quantile of `latency` may be the generator's own lateness:
    /// an index into [`QUANTILES`].
    pub fn is_own(&self, quantile: usize) -> bool {
        let lag = self.lag.quantiles.get(quantile);
        let latency = self.latency.quantiles.get(quantile);
        lag.zip(latency)
            .is_some_and(|(lag, latency)| *lag > latency / 2.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "shares")]
    fn judge(&self, seconds: f64) -> Limit {
        let scheduled = self.scheduled as f64;
        // By what was due: a Poisson process does not send its rate to the digit.
        let kept_up = self.answered_per_second + self.failed() as f64 / seconds
            >= KEPT_UP * scheduled / seconds;
        let late =
            self.late as f64 > TOO_MANY_LATE * scheduled && (0..=P99).any(|q| self.is_own(q));
        if late || (!kept_up && self.generator_busy > TOO_BUSY) {
            Limit::Generator
        } else if !kept_up || self.unanswered > 0 || self.unsent > 0 {
            Limit::Target
        } else {
            Limit::None
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "-",
            Self::Target => "target",
            Self::Generator => "GENERATOR",
        })
    }
}

impl Latencies {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn of(nanos: &Histogram<u64>) -> Self {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        if nanos.is_empty() {
            return Self {
                count: 0,
                mean: 0.0,
                quantiles: Vec::new(),
                curve: Vec::new(),
            };
        }
        let values = QUANTILES.map(|(_, quantile)| micros(nanos.value_at_quantile(quantile)));
        Self {
            count: nanos.len(),
            mean: nanos.mean() / 1e3,
            quantiles: values.to_vec(),
            curve: nanos
                .iter_quantiles(5)
                .map(|step| {
                    (
                        step.quantile_iterated_to(),
                        micros(step.value_iterated_to()),
                    )
                })
                .collect(),
        }
    }
}

/// What the reader must know before believing the latencies; none when all is well.
pub fn warning(step: &StepReport) -> Option<String> {
    let late = Span::as_millis_up(LATE);
    match step.limit {
        Limit::Generator => Some(format!(
            "at {}/s the GENERATOR was the limit: {} of {} calls left more than {late} ms late, its \
             busiest thread was on a CPU for {:.0} % of the time. Latencies of this rate are the \
             generator's, not the server's: use a lower rate, more --threads, or another machine.",
            step.rate,
            step.late,
            step.scheduled,
            step.generator_busy * 100.0,
        )),
        Limit::Target => Some(format!(
            "at {}/s the server did not keep up: {:.0} answers per second, {} calls unanswered, {} \
             held back. Latencies of this rate grow with --duration.",
            step.rate, step.answered_per_second, step.unanswered, step.unsent,
        )),
        Limit::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::{call::Answer, record::Instants},
        model::time::Timestamp,
    };

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Span::from_micros(micros)
    }

    /// A thousand calls in a second, answered after `latency`, of which the generator took `lag`.
    fn report(lag: Span, latency: Span, busy: u64) -> StepReport {
        let mut record = Record::new(at(0), at(1_000_000));
        for n in 0..1_000 {
            let due = at(n * 1_000);
            record.issued(due, lag);
            let sent = due + lag;
            record.settled(Instants { due, sent }, due + latency, Ok(Answer::Passed));
        }
        record.busy = (Span::from_millis(busy), Span::from_millis(1_000));
        let rate = NonZeroU64::new(1_000).unwrap();
        StepReport::new(rate, Span::from_secs(1), &record)
    }

    #[test]
    fn a_rate_that_was_sent_and_answered_has_no_limit() {
        let report = report(Span::from_micros(10), Span::from_micros(200), 300);
        assert_eq!(report.limit, Limit::None);
        assert_eq!(report.passed, 1_000);
        assert!((report.answered_per_second - 1_000.0).abs() < 1e-9);
        assert!((report.latency.quantiles[2] - 200.0).abs() < 1.0);
        assert!(!report.is_own(2));
        assert_eq!(warning(&report), None);
    }

    #[test]
    fn a_generator_that_is_late_says_so() {
        let report = report(Span::from_millis(3), Span::from_millis(4), 300);
        assert_eq!((report.limit, report.late), (Limit::Generator, 1_000));
        assert!(report.is_own(0));
        assert!(warning(&report).unwrap().contains("GENERATOR"));
    }

    #[test]
    fn answers_that_come_too_late_are_the_servers_unless_the_generator_was_busy() {
        let slow = Span::from_millis(100);
        assert_eq!(report(Span::ZERO, slow, 500).limit, Limit::Target);
        assert_eq!(report(Span::ZERO, slow, 990).limit, Limit::Generator);
    }
}
