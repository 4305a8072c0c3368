//! The report as a figure: latencies by percentile, one panel for each rate.
//!
//! The axis counts nines, −log₁₀(1 − q): every step to the right is ten times rarer, so that the
//! tail has as much room as the median.

use crate::{
    bench::{
        report::{Latencies, P99, StepReport},
        target::Target,
    },
    chart::figure::{Body, Figure, Ink, Layer, Panel, Panels, round_up},
};

/// Draws every rate.
pub fn figure(target: &Target, steps: &[StepReport]) -> Figure {
    let most = steps.iter().map(|step| nines(last(step.latency.count)));
    let end = most.fold(1.0, f64::max).ceil();
    Figure {
        title: format!("Latencies of {target}"),
        notes: vec![
            "Failed calls are not in them; calls without an answer waited until the end."
                .to_owned(),
        ],
        legend: vec![
            (Ink::Blue, "from the scheduled instant".to_owned()),
            (Ink::Green, "from the instant it was sent".to_owned()),
            (Ink::Orange, "lag of the generator".to_owned()),
        ],
        body: Body::Panels(Panels {
            x_label: "nines of the percentile: 1 is p90, 2 is p99, 3 is p99.9".to_owned(),
            x: (0.0, end),
            list: steps.iter().map(panel).collect(),
        }),
    }
}

fn panel(step: &StepReport) -> Panel {
    let line = |ink, latencies| Layer::Line {
        ink,
        points: points(latencies),
    };
    let drawn = [&step.latency, &step.from_send, &step.lag];
    let values = drawn.iter().flat_map(|latencies| &latencies.curve);
    let highest = values.fold(0.0, |most: f64, (_, micros)| most.max(*micros));
    let p99 = step.latency.quantiles.get(P99);
    let p99 = p99.map_or_else(String::new, |micros| {
        format!("p99 {:.3} ms, ", micros / 1e3)
    });
    Panel {
        title: format!("{} calls per second", step.rate),
        note: format!("{p99}limit: {}", step.limit),
        y_label: "ms".to_owned(),
        y_max: round_up(highest / 1e3),
        layers: vec![
            line(Ink::Orange, &step.lag),
            line(Ink::Green, &step.from_send),
            line(Ink::Blue, &step.latency),
        ],
    }
}

fn points(latencies: &Latencies) -> Vec<(f64, f64)> {
    // The largest of n values stands for the last 1/n.
    let last = last(latencies.count);
    let curve = latencies.curve.iter();
    curve
        .map(|(quantile, micros)| (nines(quantile.min(last)), micros / 1e3))
        .collect()
}

/// The highest quantile that so many values tell.
#[expect(clippy::cast_precision_loss, reason = "for drawing")]
fn last(count: u64) -> f64 {
    1.0 - 1.0 / count.max(1) as f64
}

fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_count_and_the_largest_value_has_a_place() {
        assert!(nines(0.0).abs() < 1e-9);
        assert!((nines(0.99) - 2.0).abs() < 1e-9);
        let latencies = Latencies {
            count: 1_000,
            mean: 0.0,
            quantiles: Vec::new(),
            curve: vec![(0.0, 100.0), (0.9, 1_000.0), (1.0, 5_000.0)],
        };
        let expected = [(0.0, 0.1), (1.0, 1.0), (3.0, 5.0)];
        for ((x, y), (x2, y2)) in points(&latencies).into_iter().zip(expected) {
            assert!((x - x2).abs() < 1e-9 && (y - y2).abs() < 1e-9, "{x} {y}");
        }
    }

    #[test]
    fn without_answers_there_is_still_a_figure() {
        let none = Latencies {
            count: 0,
            mean: 0.0,
            quantiles: Vec::new(),
            curve: Vec::new(),
        };
        assert_eq!(points(&none), []);
        assert!(nines(last(0)).abs() < 1e-9);
    }
}
