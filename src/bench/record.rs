//! What one lane saw at one rate.

use hdrhistogram::Histogram;

use crate::{
    bench::call::{Answer, Failure},
    model::time::{NANOS_PER_SECOND, Span, Timestamp},
};

/// A call that the generator itself sent later than this after it was due is counted as late.
pub(super) const LATE: Span = Span::from_millis(1);

/// Latencies beyond this are recorded as this.
const LONGEST: u64 = 3_600 * NANOS_PER_SECOND;

/// Counts and latencies of the calls that were due within the measured window.
#[derive(Clone, Debug)]
pub(super) struct Record {
    from: Timestamp,
    to: Timestamp,
    /// The run is over: calls that break now were never answered.
    pub(super) closing: bool,
    /// Calls that were due.
    pub(super) scheduled: u64,
    /// Answers that came within the window, whenever their calls were due.
    pub(super) answered_within: u64,
    /// Answers that let the call pass: OK, or a lease.
    pub(super) passed: u64,
    /// Answers that refuse.
    pub(super) refused: u64,
    /// Answers that are neither.
    pub(super) other: u64,
    /// Leases that were given back.
    pub(super) released: u64,
    /// Calls without an answer, and leases that were not taken back, by reason.
    pub(super) failures: Vec<(Failure, u64)>,
    /// Calls without an answer when the run ended.
    pub(super) unanswered: u64,
    /// Calls that were held back until the run ended.
    pub(super) unsent: u64,
    /// Calls that the generator sent more than [`LATE`] after they were due.
    pub(super) late: u64,
    /// Connections that were opened again.
    pub(super) reopened: u64,
    /// From the scheduled instant to the answer, in nanoseconds; of unanswered and unsent calls
    /// to the end of the run. Failed calls are not here: failing fast is not being fast.
    pub(super) latency: Histogram<u64>,
    /// From the instant a release was wanted to its answer.
    pub(super) release: Histogram<u64>,
    /// From the instant the call was written to the answer.
    pub(super) from_send: Histogram<u64>,
    /// From the scheduled instant to the instant the generator turned to the call.
    pub(super) lag: Histogram<u64>,
    /// CPU time that the lane's thread took to send its calls, of this time.
    pub(super) busy: (Span, Span),
}

/// The instants of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instants {
    /// When the schedule wanted it.
    pub(super) due: Timestamp,
    /// When it was written to the connection.
    pub(super) sent: Timestamp,
}

impl Record {
    /// An empty record of calls due from `from` until before `to`.
    pub(super) fn new(from: Timestamp, to: Timestamp) -> Self {
        Self {
            from,
            to,
            closing: false,
            scheduled: 0,
            answered_within: 0,
            passed: 0,
            refused: 0,
            other: 0,
            released: 0,
            failures: Vec::new(),
            unanswered: 0,
            unsent: 0,
            late: 0,
            reopened: 0,
            latency: histogram(),
            from_send: histogram(),
            release: histogram(),
            lag: histogram(),
            busy: (Span::ZERO, Span::ZERO),
        }
    }

    /// A call is about to be sent, `lag` after it could have been.
    pub(super) fn issued(&mut self, due: Timestamp, lag: Span) {
        if self.counts(due) {
            self.scheduled += 1;
            self.late += u64::from(lag > LATE);
            self.lag.saturating_record(lag.as_nanos());
        }
    }

    /// A call was still held back when the run ended.
    pub(super) fn never_sent(&mut self, due: Timestamp, now: Timestamp) {
        if self.counts(due) {
            self.scheduled += 1;
            self.unsent += 1;
            self.latency.saturating_record(now.since(due).as_nanos());
        }
    }

    /// A call ended: with an answer, or without one.
    pub(super) fn settled(
        &mut self,
        call: Instants,
        now: Timestamp,
        answer: Result<Answer, Failure>,
    ) {
        let within = now >= self.from && now < self.to;
        self.answered_within += u64::from(within && answer.is_ok());
        if !self.counts(call.due) {
            return;
        }
        match answer {
            Ok(answer) => {
                match answer {
                    Answer::Passed => self.passed += 1,
                    Answer::Refused => self.refused += 1,
                    Answer::Other => self.other += 1,
                }
                self.from_send
                    .saturating_record(now.since(call.sent).as_nanos());
            }
            Err(Failure::Connection) if self.closing => self.unanswered += 1,
            Err(failure) => return self.failed(failure, 1),
        }
        self.latency
            .saturating_record(now.since(call.due).as_nanos());
    }

    /// The lease of a call that was due at `due` was wanted back at `wanted`.
    pub(super) fn gave_back(
        &mut self,
        due: Timestamp,
        wanted: Timestamp,
        now: Timestamp,
        released: Result<(), Failure>,
    ) {
        if !self.counts(due) {
            return;
        }
        match released {
            Ok(()) => {
                self.released += 1;
                self.release.saturating_record(now.since(wanted).as_nanos());
            }
            // It ends with its time to live.
            Err(Failure::Connection) if self.closing => {}
            Err(failure) => self.failed(failure, 1),
        }
    }

    fn failed(&mut self, failure: Failure, more: u64) {
        match self
            .failures
            .iter_mut()
            .find(|(known, _)| *known == failure)
        {
            Some((_, count)) => *count += more,
            None => self.failures.push((failure, more)),
        }
    }

    /// Adds another lane's.
    pub(super) fn add(&mut self, other: &Self) {
        self.scheduled += other.scheduled;
        self.answered_within += other.answered_within;
        self.passed += other.passed;
        self.refused += other.refused;
        self.other += other.other;
        self.released += other.released;
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        self.late += other.late;
        self.reopened += other.reopened;
        for (failure, more) in &other.failures {
            self.failed(*failure, *more);
        }
        for (mine, others) in [
            (&mut self.latency, &other.latency),
            (&mut self.from_send, &other.from_send),
            (&mut self.release, &other.release),
            (&mut self.lag, &other.lag),
        ] {
            // All histograms have the same bounds.
            let _ = mine.add(others);
        }
        // The busiest lane decides whether the generator was the limit.
        if other.busy_share() > self.busy_share() {
            self.busy = other.busy;
        }
    }

    /// Share of its time for which the lane's thread was on a CPU while it sent.
    pub(super) fn busy_share(&self) -> f64 {
        let (cpu, time) = self.busy;
        if time.is_zero() {
            return 0.0;
        }
        cpu.as_secs_f64() / time.as_secs_f64()
    }

    fn counts(&self, due: Timestamp) -> bool {
        due >= self.from && due < self.to
    }
}

#[expect(clippy::expect_used, reason = "these bounds are known to be right")]
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds of a histogram")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Span::from_millis(millis)
    }

    fn call(due: u64, sent: u64) -> Instants {
        Instants {
            due: at(due),
            sent: at(sent),
        }
    }

    /// Within three digits.
    fn is(histogram: &Histogram<u64>, quantile: f64, millis: u64) -> bool {
        histogram
            .value_at_quantile(quantile)
            .abs_diff(millis * 1_000_000)
            <= millis * 1_000
    }

    #[test]
    fn latency_counts_from_the_scheduled_instant() {
        let mut record = Record::new(at(100), at(200));
        record.issued(at(150), Span::from_millis(30));
        record.settled(call(150, 180), at(190), Ok(Answer::Passed));
        assert!(is(&record.latency, 1.0, 40));
        assert!(is(&record.from_send, 1.0, 10));
        assert!(is(&record.lag, 1.0, 30));
        assert_eq!((record.scheduled, record.late, record.passed), (1, 1, 1));
    }

    #[test]
    fn warm_up_is_not_measured_but_its_answers_are_throughput() {
        let mut record = Record::new(at(100), at(200));
        record.issued(at(99), Span::ZERO);
        record.settled(call(99, 99), at(101), Ok(Answer::Passed));
        record.issued(at(199), Span::ZERO);
        record.settled(call(199, 199), at(201), Ok(Answer::Refused));
        assert_eq!(record.scheduled, 1);
        assert_eq!((record.passed, record.refused), (0, 1));
        assert_eq!(
            record.answered_within, 1,
            "the one that came within the window"
        );
        assert_eq!(record.latency.len(), 1);
    }

    #[test]
    fn failures_are_counted_but_not_as_latency() {
        let mut record = Record::new(at(0), at(100));
        let unavailable = Failure::Grpc(tonic::Code::Unavailable);
        for failure in [unavailable, Failure::Connection, unavailable] {
            record.settled(call(1, 1), at(2), Err(failure));
        }
        let mut sum = record.clone();
        sum.add(&record);
        assert_eq!(sum.failures, [(unavailable, 4), (Failure::Connection, 2)]);
        assert_eq!(sum.latency.len(), 0);
    }

    #[test]
    fn calls_without_an_answer_waited_at_least_until_the_end() {
        let mut record = Record::new(at(0), at(100));
        record.closing = true;
        record.settled(call(10, 10), at(510), Err(Failure::Connection));
        record.never_sent(at(20), at(520));
        assert_eq!((record.unanswered, record.unsent), (1, 1));
        assert!(record.failures.is_empty());
        assert!(is(&record.latency, 0.0, 500) && is(&record.latency, 1.0, 500));
        assert_eq!(record.from_send.len(), 0);
    }

    #[test]
    fn the_busiest_lane_is_shown() {
        let mut one = Record::new(at(0), at(1));
        one.busy = (Span::from_millis(1), Span::from_millis(10));
        let mut two = one.clone();
        two.busy = (Span::from_millis(9), Span::from_millis(10));
        one.add(&two);
        assert!((one.busy_share() - 0.9).abs() < 1e-9);
    }
}
