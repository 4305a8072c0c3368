//! The chart of `kind: limits`: one panel for each limit, and one for the waiting of each shaper.

use super::{LimitsExperiment, Trial};
use crate::{
    chart::figure::{Body, Figure, Ink, Layer, Panel, Panels, round_up},
    model::time::Span,
    simulate::{report::short, run::Fate},
};

/// About how many bars stand side by side.
const BARS: f64 = 120.0;
/// The most: narrower ones than asked for could not be seen.
const MOST_BARS: f64 = 1_000.0;
/// Most dots of one panel; of more, evenly chosen ones are drawn.
const DOTS: usize = 2_000;

/// Draws what the table says.
pub(super) fn figure(
    experiment: &LimitsExperiment,
    results: &[Trial<'_>],
    notes: &[String],
) -> Figure {
    let end = end(experiment, results);
    let asked = experiment.bar.map(Span::as_secs_f64);
    let fits = asked.filter(|bar| end / bar <= MOST_BARS);
    let bar = fits.unwrap_or_else(|| round_up(end / BARS));
    let x = (0.0, (end / bar).ceil() * bar);
    let offered = experiment.arrivals.iter();
    let offered = offered.map(|arrival| (arrival.at.as_secs_f64(), number(arrival.cost)));
    let offered = Panel::binned(x, bar, offered);
    let admitted: Vec<Vec<f64>> = results
        .iter()
        .map(|result| {
            let passed = result.passed.iter();
            let passed = passed.map(|passed| (passed.at.as_secs_f64(), number(passed.cost)));
            Panel::binned(x, bar, passed)
        })
        .collect();
    let heights = admitted.iter().flatten().chain(&offered);
    // Room for what is written above the bars.
    let y_max = heights.fold(1.0, |most: f64, height| most.max(*height)) * 1.3;
    let unit = if experiment.costs_differ_from_one() {
        "units"
    } else {
        "requests"
    };
    let y_label = format!("{unit} / {}", short(Span::from_secs_f64(bar)));
    let mut panels = Vec::new();
    for (result, heights) in results.iter().zip(admitted) {
        let bars = |ink, heights| Layer::Bars {
            ink,
            width: bar,
            heights,
        };
        panels.push(Panel {
            title: result.name().to_owned(),
            note: format!(
                "{}: {} of {} admitted",
                result.limit,
                result.passed.len(),
                experiment.arrivals.len()
            ),
            y_label: y_label.clone(),
            y_max,
            layers: vec![
                fullest(experiment, result),
                bars(Ink::Grey, offered.clone()),
                bars(Ink::Blue, heights),
            ],
        });
    }
    let shapers = results.iter().filter(|result| result.is_shaper());
    panels.extend(shapers.map(|result| waiting(experiment, result)));
    let window = short(experiment.window);
    let mut legend = vec![
        (Ink::Grey, "offered".to_owned()),
        (
            Ink::Blue,
            "admitted (from a queue: when it leaves)".to_owned(),
        ),
        (Ink::Orange, format!("the {window} in which most pass")),
    ];
    if results.iter().any(Trial::is_shaper) {
        legend.push((Ink::Green, "time in the queue".to_owned()));
    }
    Figure {
        title: experiment.title.clone(),
        notes: notes.to_vec(),
        legend,
        body: Body::Panels(Panels {
            x_label: "seconds since the start".to_owned(),
            x,
            list: panels,
        }),
    }
}

/// Where the axis of time ends: when the last request has come, and the last admitted one left.
fn end(experiment: &LimitsExperiment, results: &[Trial<'_>]) -> f64 {
    let left = results.iter().filter_map(|result| result.passed.last());
    let came = experiment.arrivals.last().map(|arrival| arrival.at);
    let end = left
        .map(|passed| passed.at)
        .chain(came)
        .max()
        .unwrap_or_default();
    // What happens at the end needs a bar, too.
    (end.as_secs_f64() * 1.02).max(1e-6)
}

fn fullest(experiment: &LimitsExperiment, result: &Trial<'_>) -> Layer {
    let from = result.fullest.from.as_secs_f64();
    Layer::Band {
        ink: Ink::Orange,
        x: (from, from + experiment.window.as_secs_f64()),
        label: format!("{} in {}", result.fullest.units, short(experiment.window)),
    }
}

fn waiting(experiment: &LimitsExperiment, result: &Trial<'_>) -> Panel {
    let waits = result.course.waits();
    let arrivals = experiment.arrivals.iter().zip(result.course.fates());
    let mut points: Vec<(f64, f64)> = arrivals
        .filter_map(|(arrival, fate)| match fate {
            Fate::Admitted(delay) => Some((arrival.at.as_secs_f64(), delay.as_secs_f64())),
            Fate::Refused(_) => None,
        })
        .collect();
    let step = points.len().div_ceil(DOTS).max(1);
    if step > 1 {
        points = points.into_iter().step_by(step).collect();
    }
    Panel {
        title: format!("waiting in {}", result.name()),
        note: format!(
            "mean {}, p50 {}, p99 {}, longest {}",
            short(waits.mean),
            short(waits.p50),
            short(waits.p99),
            short(waits.max)
        ),
        y_label: "seconds".to_owned(),
        y_max: (waits.max.as_secs_f64() * 1.15).max(1e-6),
        layers: vec![Layer::Dots {
            ink: Ink::Green,
            points,
        }],
    }
}

#[expect(clippy::cast_precision_loss, reason = "the height of a bar")]
fn number(units: u64) -> f64 {
    units as f64
}
