//! Where spans of calls go, by our settings, the reference's variables or OpenTelemetry's.

use super::{source::Source, take, values};
use crate::telemetry::spans::export::SpanOptions;

/// Where OpenTelemetry looks for a collector.
const THEIR_COLLECTOR: &str = "http://localhost:4317";

/// None: nobody wants spans.
pub(super) fn spans(source: &mut Source<'_>) -> Option<SpanOptions> {
    // All are read, whether spans are wanted or not: what is wrong is said in any case.
    let collector = collector(source);
    let service = take(source, "otlp-service-name", printable);
    let ratio = take(source, "otlp-sample", values::ratio);
    let resource = [
        ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
        ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
    ];
    let resource = resource.into_iter().filter_map(|(key, variable)| {
        let value = source.take_variable(variable, printable)?;
        Some((key.to_owned(), value))
    });
    Some(SpanOptions {
        resource: resource.collect(),
        collector: collector?,
        ratio: ratio.unwrap_or(1.0),
        service: service.unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned()),
    })
}

/// Our setting alone is enough; the addresses of others count when the reference's switch says so.
fn collector(source: &mut Source<'_>) -> Option<String> {
    if let Some(ours) = source.take_ours("otlp", url) {
        return Some(ours);
    }
    let wanted = source.take_variable("TRACING_ENABLED", values::boolean);
    let all = source.take_variable("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    let of_traces = source.take_variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url);
    let theirs = of_traces.or(all);
    (wanted == Some(true)).then(|| theirs.unwrap_or_else(|| THEIR_COLLECTOR.to_owned()))
}

fn url(text: &str) -> Result<String, &'static str> {
    let uri = text.parse::<http::Uri>().ok();
    let is_one = |uri: &http::Uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    };
    if uri.as_ref().is_some_and(is_one) {
        Ok(text.to_owned())
    } else {
        Err("want http://HOST:PORT or https://HOST:PORT")
    }
}

fn printable(text: &str) -> Result<String, &'static str> {
    if text.contains(char::is_control) {
        Err("want a text without control characters")
    } else {
        Ok(text.to_owned())
    }
}
