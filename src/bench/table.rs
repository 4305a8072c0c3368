//! The report for people: one row per rate.

use crate::{
    bench::report::{Latencies, P99, QUANTILES, StepReport},
    chart::table::{Align, Table},
};

/// What stands below the table.
pub const LEGEND: &str = "\
Latencies in milliseconds from the scheduled instant; failed calls are not in them.
unsettled: not answered, or not even sent, when the drain was over.
lag: what the generator was late; *: more than half of it may be the generator's lag.";

/// All rates. A `*` marks a latency of which more than half may be the generator's own.
pub fn table(steps: &[StepReport]) -> Table {
    let columns = ["rate/s", "answers/s", "refused", "failed", "unsettled"];
    let quantiles = QUANTILES.map(|(name, _)| name);
    let columns: Vec<_> = columns
        .into_iter()
        .chain(quantiles)
        .chain(["lag p99", "late", "busy"])
        .map(|head| (head, Align::Right))
        .chain([("limit", Align::Left)])
        .collect();
    let mut table = Table::new(&columns);
    for step in steps {
        table.row(row(step));
    }
    table
}

/// How leases were given back, by rate; empty when there were none.
pub fn releases(steps: &[StepReport]) -> Table {
    let columns = ["rate/s", "released"];
    let quantiles = QUANTILES.map(|(name, _)| name);
    let columns = columns.into_iter().chain(quantiles);
    let columns: Vec<_> = columns.map(|head| (head, Align::Right)).collect();
    let mut table = Table::new(&columns);
    for step in steps.iter().filter(|step| step.released > 0) {
        let quantiles = (0..QUANTILES.len()).map(|index| millis(&step.release, index));
        table.row(
            [step.rate.to_string(), step.released.to_string()]
                .into_iter()
                .chain(quantiles),
        );
    }
    table
}

fn row(step: &StepReport) -> Vec<String> {
    let answers = step.passed + step.refused + step.other;
    let mut cells = vec![
        step.rate.to_string(),
        format!("{:.0}", step.answered_per_second),
        percent(step.refused, answers),
        step.failed().to_string(),
        (step.unanswered + step.unsent).to_string(),
    ];
    cells.extend((0..QUANTILES.len()).map(|index| {
        let mark = if step.is_own(index) { "*" } else { "" };
        format!("{}{mark}", millis(&step.latency, index))
    }));
    cells.extend([
        millis(&step.lag, P99),
        percent(step.late, step.scheduled),
        format!("{:.0}%", step.generator_busy * 100.0),
        step.limit.to_string(),
    ]);
    cells
}

fn millis(latencies: &Latencies, index: usize) -> String {
    match latencies.quantiles.get(index) {
        Some(micros) => format!("{:.3}", micros / 1e3),
        None => "-".to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0%".to_owned();
    }
    format!("{:.2}%", part as f64 / whole as f64 * 100.0)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::{
        bench::{
            call::Answer,
            record::{Instants, Record},
        },
        model::time::{Span, Timestamp},
    };

    #[test]
    fn a_row_tells_shares_latencies_and_who_was_late() {
        let at = |millis| Timestamp::ZERO + Span::from_millis(millis);
        let mut record = Record::new(at(0), at(1_000));
        for n in 0..100 {
            record.issued(at(n), Span::from_micros(if n < 90 { 10 } else { 4_000 }));
            let call = Instants {
                due: at(n),
                sent: at(n),
            };
            let answer = if n % 4 == 0 {
                Answer::Refused
            } else {
                Answer::Passed
            };
            record.settled(call, at(n + 5), Ok(answer));
        }
        record.busy = (Span::from_millis(42), Span::from_millis(100));
        let rate = NonZeroU64::new(100).unwrap();
        let table = table(&[StepReport::new(rate, Span::from_secs(1), &record)]);
        let expected = "\
rate/s  answers/s  refused  failed  unsettled    p50    p90     p99   p99.9  p99.99     max  lag p99    late  busy  limit
------  ---------  -------  ------  ---------  -----  -----  ------  ------  ------  ------  -------  ------  ----  ---------
   100        100   25.00%       0          0  5.001  5.001  5.001*  5.001*  5.001*  5.001*    4.002  10.00%   42%  GENERATOR
";
        assert_eq!(table.to_string(), expected);
    }
}
