//! Where spans of calls go, by our settings, the reference's variables or OpenTelemetry's.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{source::Source, values};
use crate::telemetry::spans::export::{Protocol, SpanOptions};

/// Where OpenTelemetry looks for a collector.
const fn their_collector(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Grpc => "http://localhost:4317",
        Protocol::Http => "http://localhost:4318",
    }
}

/// Behind the address of a collector that takes more than spans, over HTTP.
const PATH: &str = "/v1/traces";

/// None: nobody wants spans.
pub(super) fn spans(source: &mut Source<'_>) -> Option<SpanOptions> {
    // All are read, whether spans are wanted or not: what is wrong is said in any case.
    let protocol = source.take("otlp-protocol", protocol);
    let collector = collector(source, protocol);
    let service = source.take("otlp-service-name", printable);
    let ratio = source.take("otlp-sample", values::ratio);
    let all = source.take_variable("OTEL_EXPORTER_OTLP_HEADERS", headers);
    let of_traces = source.take_variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS", headers);
    let resource = [
        ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
        ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
    ];
    let resource = resource.into_iter().filter_map(|(key, variable)| {
        let value = source.take_variable(variable, printable)?;
        Some((key.to_owned(), value))
    });
    let resource = resource.collect();
    let (collector, protocol) = collector?;
    Some(SpanOptions {
        resource,
        collector,
        protocol,
        headers: of_traces.or(all).unwrap_or_default(),
        ratio: ratio.unwrap_or(1.0),
        service: service.unwrap_or_else(|| env!("CARGO_PKG_NAME").to_owned()),
    })
}

/// Our setting alone is enough; the addresses of others count when the reference's switch says so.
/// Ours was gRPC's before there was a choice, and the reference's default is HTTP.
fn collector(source: &mut Source<'_>, protocol: Option<Protocol>) -> Option<(String, Protocol)> {
    if let Some(ours) = source.take_ours("otlp", url) {
        let protocol = protocol.unwrap_or(Protocol::Grpc);
        return Some((of_all(ours, protocol), protocol));
    }
    let protocol = protocol.unwrap_or(Protocol::Http);
    let wanted = source.take_variable("TRACING_ENABLED", values::boolean);
    let all = source.take_variable("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    let of_traces = source.take_variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url);
    let theirs = of_traces.unwrap_or_else(|| {
        let all = all.unwrap_or_else(|| their_collector(protocol).to_owned());
        of_all(all, protocol)
    });
    (wanted == Some(true)).then_some((theirs, protocol))
}

/// Where spans go at a collector that is named without a path for them.
fn of_all(mut collector: String, protocol: Protocol) -> String {
    if protocol == Protocol::Http && !collector.ends_with(PATH) {
        collector.truncate(collector.trim_end_matches('/').len());
        collector.push_str(PATH);
    }
    collector
}

fn protocol(text: &str) -> Result<Protocol, &'static str> {
    match text {
        "grpc" => Ok(Protocol::Grpc),
        "http" | "http/protobuf" => Ok(Protocol::Http),
        _ => Err("want grpc or http/protobuf"),
    }
}

/// `NAME=VALUE,…`, values as in URLs.
fn headers(text: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in values::pairs(text, '=')? {
        let header = || {
            let name: HeaderName = name.parse().ok()?;
            let mut value = HeaderValue::from_bytes(&unescaped(&value)?).ok()?;
            // It may be a token.
            value.set_sensitive(true);
            Some((name, value))
        };
        let (name, value) = header().ok_or("want names and values of HTTP headers")?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// `%20` and the like read. None: something else follows a `%`.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_path_of_their_own_over_http() {
        for (collector, want) in [
            ("http://a:4318", "http://a:4318/v1/traces"),
            ("http://a:4318/", "http://a:4318/v1/traces"),
            ("https://a/otlp", "https://a/otlp/v1/traces"),
            ("https://a/otlp/v1/traces", "https://a/otlp/v1/traces"),
        ] {
            assert_eq!(of_all(collector.to_owned(), Protocol::Http), want);
            assert_eq!(of_all(collector.to_owned(), Protocol::Grpc), collector);
        }
    }

    #[test]
    fn headers_are_read_as_in_urls_and_not_shown() {
        let read = headers("authorization=Basic%20YTpi%3D, x-tenant = a").unwrap();
        assert_eq!(read["authorization"], "Basic YTpi=");
        assert_eq!(read["x-tenant"], "a");
        assert!(!format!("{read:?}").contains("YTpi"));
        for wrong in ["a", "a b=c", "a=%0a", "a=%4", "a=%+1", "a=%é"] {
            assert!(headers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn protocols_have_the_names_of_both() {
        assert_eq!(protocol("grpc"), Ok(Protocol::Grpc));
        for http in ["http", "http/protobuf"] {
            assert_eq!(protocol(http), Ok(Protocol::Http));
        }
        assert!(protocol("http/json").is_err());
    }
}
