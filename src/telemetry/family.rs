//! Metric families, built from numbers that live elsewhere.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

/// Label names and values of one series.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// A family that is filled series by series.
#[derive(Debug)]
pub struct Family {
    kind: MetricType,
    head: MetricFamily,
    series: Vec<Metric>,
}

impl Family {
    /// A number that only grows.
    pub fn counter(name: &str, help: &str) -> Self {
        Self::new(MetricType::COUNTER, name, help)
    }

    /// A number that goes up and down.
    pub fn gauge(name: &str, help: &str) -> Self {
        Self::new(MetricType::GAUGE, name, help)
    }

    /// Numbers by size.
    pub fn histogram(name: &str, help: &str) -> Self {
        Self::new(MetricType::HISTOGRAM, name, help)
    }

    /// Adds a series to a histogram: upper bounds with the number of values at or below each, the
    /// number of all values, and their sum.
    pub fn spread(
        &mut self,
        labels: Labels<'_>,
        cumulative: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        let bucket = |(bound, count)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        };
        let mut histogram = Histogram::default();
        histogram.set_bucket(cumulative.map(bucket).collect());
        histogram.set_sample_count(count);
        histogram.set_sample_sum(sum);
        let mut metric = Metric::default();
        let labels = labels.iter().map(|(name, value)| label(name, value));
        metric.set_label(labels.collect());
        metric.set_histogram(histogram);
        self.series.push(metric);
    }

    fn new(kind: MetricType, name: &str, help: &str) -> Self {
        let mut head = MetricFamily::default();
        head.set_name(name.to_owned());
        head.set_help(help.to_owned());
        head.set_field_type(kind);
        Self {
            kind,
            head,
            series: Vec::new(),
        }
    }

    /// Adds a series.
    pub fn add(&mut self, labels: Labels<'_>, value: f64) {
        let mut metric = Metric::default();
        metric.set_label(
            labels
                .iter()
                .map(|(name, value)| label(name, value))
                .collect(),
        );
        if self.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.series.push(metric);
    }

    /// Adds a series of a whole number.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the text format knows doubles only"
    )]
    pub fn count(&mut self, labels: Labels<'_>, value: u64) {
        self.add(labels, value as f64);
    }

    /// The family, if it has a series: the text format knows no empty ones.
    pub fn finish(mut self) -> Option<MetricFamily> {
        if self.series.is_empty() {
            return None;
        }
        self.head.set_metric(self.series);
        Some(self.head)
    }
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
}
