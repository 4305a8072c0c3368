//! The metrics page, first part: the reference's names and labels, so that its dashboards stay
//! true.
//!
//! The reference sends statsd names and splits them at dots: `domain.key1.key2.stat`. A dot inside
//! a domain or a value shifts the labels, and levels past the second key are folded into it. Both
//! are kept here.

use std::collections::BTreeMap;

use prometheus::{Encoder as _, TextEncoder, proto::MetricFamily};

use crate::telemetry::{
    call::{CallStat, CallStats},
    family::{self, Family},
    latency::{self, Latency},
    registry::RuleRegistry,
    rule::RuleStat,
};

/// The families of the reference's page.
pub fn reference_families(
    paths: &RuleRegistry,
    calls: &CallStats,
    latency: &Latency,
) -> Vec<MetricFamily> {
    let mut page = Page::default();
    paths.for_each(|path, sums| {
        for (stat, sum) in RuleStat::ALL.into_iter().zip(sums) {
            page.add_rule(path, stat, sum);
        }
    });
    for (stat, name, labels) in [
        (
            CallStat::ConfigLoadSuccess,
            "ratelimit_service_config_load_success",
            vec![],
        ),
        (
            CallStat::ConfigLoadError,
            "ratelimit_service_config_load_error",
            vec![],
        ),
        (
            CallStat::GlobalShadowMode,
            "ratelimit_service_global_shadow_mode",
            vec![],
        ),
        (
            CallStat::ServiceError,
            "ratelimit_service_should_rate_limit_error",
            vec![("err_type", "service_error".to_owned())],
        ),
        (
            CallStat::RedisError,
            "ratelimit_service_should_rate_limit_error",
            vec![("err_type", "redis_error".to_owned())],
        ),
        (
            CallStat::TotalRequests,
            "ratelimit_service_total_requests",
            vec![("grpc_method", "ShouldRateLimit".to_owned())],
        ),
    ] {
        page.add(name.to_owned(), labels, calls.sum(stat));
    }
    let mut families = page.families();
    families.extend(response_time(latency));
    families
}

/// Text format 0.0.4.
pub fn render(families: &[MetricFamily]) -> String {
    let mut page = Vec::new();
    // Families come from here: valid names and at least one metric each, so nothing can fail.
    let _ = TextEncoder::new().encode(families, &mut page);
    String::from_utf8_lossy(&page).into_owned()
}

type Labels = Vec<(&'static str, String)>;

/// Sums by metric name and labels: several stat paths may meet in one series.
#[derive(Default)]
struct Page(BTreeMap<String, BTreeMap<Labels, u64>>);

impl Page {
    fn add(&mut self, name: String, labels: Labels, sum: u64) {
        // The reference shows a counter from its first hit on.
        if sum > 0 {
            *self.0.entry(name).or_default().entry(labels).or_default() += sum;
        }
    }

    fn add_rule(&mut self, path: &str, stat: RuleStat, sum: u64) {
        let path = statsd_name(path);
        let mapped = !matches!(
            stat,
            RuleStat::OverLimitWithLocalCache | RuleStat::DomainNotFound
        );
        let mut parts = path.split('.');
        if let (true, Some(domain), Some(key1)) = (mapped, parts.next(), parts.next()) {
            let mut labels = vec![("domain", domain.to_owned()), ("key1", key1.to_owned())];
            labels.extend(parts.next().map(|key2| ("key2", key2.to_owned())));
            self.add(
                format!("ratelimit_service_rate_limit_{}", stat.name()),
                labels,
                sum,
            );
        } else {
            let name = format!("ratelimit.service.rate_limit.{path}.{}", stat.name());
            self.add(metric_name(&name), vec![], sum);
        }
    }

    fn families(self) -> Vec<MetricFamily> {
        self.0
            .into_iter()
            .filter_map(|(name, series)| family(&name, series))
            .collect()
    }
}

fn family(name: &str, series: BTreeMap<Labels, u64>) -> Option<MetricFamily> {
    let help = format!("{name}, as envoyproxy/ratelimit counts it");
    let mut family = Family::counter(name, &help);
    for (labels, sum) in series {
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        family.count(&labels, sum);
    }
    family.finish()
}

fn response_time(latency: &Latency) -> Option<MetricFamily> {
    let name = "ratelimit_service_response_time_seconds";
    let help = "Time from a request's last byte to its answer";
    let snapshot = latency.snapshot();
    if snapshot.count == 0 {
        return None;
    }
    histogram(name, help, &[("grpc_method", "ShouldRateLimit")], snapshot)
}

/// A family of one histogram.
pub fn histogram(
    name: &str,
    help: &str,
    labels: family::Labels<'_>,
    snapshot: latency::Snapshot,
) -> Option<MetricFamily> {
    let mut family = Family::histogram(name, help);
    let bounds = snapshot.cumulative.into_iter();
    family.spread(labels, bounds, snapshot.count, snapshot.sum);
    family.finish()
}

/// The reference's rewriting of texts in statsd names: `:` and `|` become `_`, and so do the dots
/// of what looks like an IPv4 address.
pub fn statsd_name(path: &str) -> String {
    let mut name: Vec<u8> = path
        .bytes()
        .map(|byte| {
            if matches!(byte, b':' | b'|') {
                b'_'
            } else {
                byte
            }
        })
        .collect();
    let mut start = 0;
    while start < name.len() {
        match ipv4_length(&name[start..]) {
            Some(length) if start == 0 || !name[start - 1].is_ascii_digit() => {
                for byte in &mut name[start..start + length] {
                    if *byte == b'.' {
                        *byte = b'_';
                    }
                }
                start += length;
            }
            _ => start += 1,
        }
    }
    String::from_utf8_lossy(&name).into_owned()
}

/// Length of the dotted quad of one to three digits each at the start of `text`.
fn ipv4_length(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    for part in 0..4 {
        if part > 0 {
            (text.get(at) == Some(&b'.')).then_some(())?;
            at += 1;
        }
        let digits = text[at..]
            .iter()
            .take(3)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        (digits > 0).then_some(())?;
        at += digits;
    }
    Some(at)
}

/// What is not allowed in a metric name becomes `_`.
fn metric_name(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' || c == ':' {
            c
        } else {
            '_'
        }
    };
    text.chars().map(allowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Span;

    #[test]
    fn statsd_names_are_rewritten_as_the_reference_does() {
        for (path, want) in [
            ("p_/a/b", "p_/a/b"),
            ("p_/a:*:b", "p_/a_*_b"),
            ("p_/a|b|c", "p_/a_b_c"),
            ("ip_10.2.3.4/24", "ip_10_2_3_4/24"),
            ("host_a.b.c", "host_a.b.c"),
        ] {
            assert_eq!(statsd_name(path), want);
        }
    }

    #[test]
    fn levels_past_the_second_key_are_folded() {
        let paths = RuleRegistry::default();
        let rules = ["d.k1", "d.k1.k2", "d.k3.k4", "d.k3.k4.k5"];
        for (stats, hits) in paths.load(rules, ["d"]).iter().zip([1, 2, 1, 2]) {
            stats.add(RuleStat::OverLimit, hits);
        }
        let page = render(&reference_families(
            &paths,
            &CallStats::default(),
            &Latency::default(),
        ));
        let series: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let name = "ratelimit_service_rate_limit_over_limit";
        assert_eq!(
            series,
            [
                format!("{name}{{domain=\"d\",key1=\"k1\"}} 1"),
                format!("{name}{{domain=\"d\",key1=\"k1\",key2=\"k2\"}} 2"),
                format!("{name}{{domain=\"d\",key1=\"k3\",key2=\"k4\"}} 3"),
            ]
        );
    }

    #[test]
    fn response_time_is_in_seconds() {
        let latency = Latency::default();
        latency.observe(Span::from_millis(1_000));
        let page = render(&reference_families(
            &RuleRegistry::default(),
            &CallStats::default(),
            &latency,
        ));
        let sum = "ratelimit_service_response_time_seconds_sum{grpc_method=\"ShouldRateLimit\"} 1";
        assert!(page.lines().any(|line| line == sum), "{page}");
    }
}
