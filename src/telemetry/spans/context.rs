//! Where a call belongs: W3C Trace Context, level 1 (<https://www.w3.org/TR/trace-context/>).

use http::HeaderMap;
use opentelemetry::trace::{SpanId, TraceId, TraceState};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Longest `tracestate` that is carried on, in bytes; what the specification asks for at least.
const LONGEST_STATE: usize = 512;

/// The span of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    /// The caller's span is recorded.
    pub(super) is_sampled: bool,
    pub(super) state: TraceState,
}

/// Reads it; none when there is none that can be read.
pub(super) fn parent(headers: &HeaderMap) -> Option<Parent> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let text = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    let (trace, span, is_sampled) = traceparent(text)?;
    Some(Parent {
        trace,
        span,
        is_sampled,
        state: state(headers).unwrap_or_default(),
    })
}

/// `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`; of later versions what is the same.
fn traceparent(text: &str) -> Option<(TraceId, SpanId, bool)> {
    const LENGTH: usize = 55;
    let known = text.get(..LENGTH)?;
    let rest = text.get(LENGTH..)?;
    let mut fields = known.split('-');
    let mut next = |digits: usize| {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let field = fields.next()?;
        (field.len() == digits && field.bytes().all(is_hex)).then_some(field)
    };
    let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    let may_follow = version != "00" && rest.starts_with('-');
    if version == "ff" || !(rest.is_empty() || may_follow) {
        return None;
    }
    let trace = TraceId::from_hex(trace).ok()?;
    let span = SpanId::from_hex(span).ok()?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let is_there = trace != TraceId::INVALID && span != SpanId::INVALID;
    is_there.then_some((trace, span, flags & 1 == 1))
}

/// Several headers are one list.
fn state(headers: &HeaderMap) -> Option<TraceState> {
    let mut all = String::new();
    for state in headers.get_all(TRACESTATE) {
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(state.to_str().ok()?);
        if all.len() > LONGEST_STATE {
            return None;
        }
    }
    all.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn a_caller_is_read() {
        for (text, sampled) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-02"), false),
            (format!("cc-{TRACE}-{SPAN}-03"), true),
            (format!("cc-{TRACE}-{SPAN}-01-what-comes-later"), true),
        ] {
            let (trace, span, is_sampled) = traceparent(&text).unwrap();
            assert_eq!(
                (trace.to_string().as_str(), span.to_string().as_str()),
                (TRACE, SPAN)
            );
            assert_eq!(is_sampled, sampled, "{text}");
        }
    }

    #[test]
    fn what_is_no_caller_is_none() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("0x-{TRACE}-{SPAN}-01"),
            format!("00-{}é-{SPAN}-01", &TRACE[..30]),
        ] {
            assert_eq!(traceparent(&text), None, "{text}");
        }
    }

    #[test]
    fn a_state_is_carried_on_if_it_is_one() {
        let headers = |states: &[&str]| {
            let mut headers = HeaderMap::new();
            let parent = format!("00-{TRACE}-{SPAN}-01");
            headers.insert(TRACEPARENT, parent.parse().unwrap());
            for state in states {
                headers.append(TRACESTATE, state.parse().unwrap());
            }
            headers
        };
        let state = |states: &[&str]| parent(&headers(states)).unwrap().state.header();
        assert_eq!(state(&["a=1,b=2", "c=3"]), "a=1,b=2,c=3");
        assert_eq!(state(&["no state"]), "");
        assert_eq!(state(&[&format!("a={}", "x".repeat(600))]), "");
        let mut two = headers(&[]);
        two.append(
            TRACEPARENT,
            format!("00-{TRACE}-{SPAN}-00").parse().unwrap(),
        );
        assert_eq!(parent(&two), None);
    }
}
