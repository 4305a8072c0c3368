//! A span for each call, for those who follow a request through many services.
//!
//! A call whose caller has a span (W3C `traceparent`) is recorded if that one is; a call without
//! one is recorded with a probability. What is recorded waits in a bounded queue for
//! [`export`]: a worker never waits for a collector.
//!
//! While the future of a call is polled, its span is the one of the thread ([`CallSpan::around`]),
//! so that [`note`] finds it from wherever something is decided. Without spans that costs a look
//! at a thread's own variable.

mod context;
pub mod export;
mod over_http;

use std::{
    borrow::Cow,
    cell::Cell,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use http::HeaderMap;
use opentelemetry::{
    InstrumentationScope, KeyValue, Value,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId},
};
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Code;

use self::{context::parent, export::Counts};
use crate::model::time::{Clock, Timestamp};

/// Makes spans of calls.
#[derive(Debug)]
pub struct Spans {
    /// Of calls without a caller's span, in 2⁻⁶³.
    recorded: u64,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    queue: mpsc::Sender<SpanData>,
    counts: Arc<Counts>,
    clock: Clock,
}

/// The span of one call. It ends when the last one lets go of it.
#[derive(Debug)]
pub struct CallSpan {
    spans: Arc<Spans>,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    /// None once it has ended.
    data: Option<SpanData>,
    /// None while the call is not answered.
    answered: Option<Code>,
    decisions: u32,
    refused: u32,
}

/// What was decided, for [`note`].
#[derive(Clone, Debug, Default)]
pub struct Noted<'n> {
    /// The domain of the request.
    pub domain: &'n str,
    /// The request was refused.
    pub is_refused: bool,
    /// The limit that binds: its rule, and its own name behind a `/` if it has one.
    pub limit: Option<String>,
    /// Why it refuses.
    pub reason: Option<&'static str>,
}

impl Spans {
    /// The span of a call that has these headers; none when it is not recorded. `name` is
    /// `SERVICE/METHOD`.
    pub fn begin(
        self: &Arc<Self>,
        headers: &HeaderMap,
        name: &'static str,
    ) -> Option<Arc<CallSpan>> {
        let parent = parent(headers);
        let trace = match &parent {
            Some(parent) => parent.is_sampled.then_some(parent.trace)?,
            None => self.recorded_trace()?,
        };
        let now = instant(self.clock.now().wall);
        let data = SpanData {
            span_context: SpanContext::new(
                trace,
                self.ids.new_span_id(),
                TraceFlags::SAMPLED,
                false,
                parent
                    .as_ref()
                    .map(|parent| parent.state.clone())
                    .unwrap_or_default(),
            ),
            parent_span_id: parent
                .as_ref()
                .map_or(SpanId::INVALID, |parent| parent.span),
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Server,
            name: Cow::Borrowed(name),
            start_time: now,
            end_time: now,
            attributes: kind(name),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        };
        Some(Arc::new(CallSpan {
            spans: Arc::clone(self),
            open: Mutex::new(Open {
                data: Some(data),
                answered: None,
                decisions: 0,
                refused: 0,
            }),
        }))
    }

    /// The id of a new trace, if it is recorded: by the ids' last 63 bits, as other OpenTelemetry
    /// programs decide it.
    fn recorded_trace(&self) -> Option<TraceId> {
        if self.recorded == 0 {
            return None;
        }
        let trace = self.ids.new_trace_id();
        let chance = (u128::from_be_bytes(trace.to_bytes()) & u128::from(u64::MAX)) >> 1;
        (chance < u128::from(self.recorded)).then_some(trace)
    }
}

/// `ratio` in 2⁻⁶³.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number from 0 to 2⁶³"
)]
fn of_ratio(ratio: f32) -> u64 {
    const ALL: f64 = 9_223_372_036_854_775_808.0;
    (f64::from(ratio.clamp(0.0, 1.0)) * ALL) as u64
}

fn instant(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(time.as_nanos())
}

/// What kind of call it is, in OpenTelemetry's words.
fn kind(name: &'static str) -> Vec<KeyValue> {
    match name.split_once('/') {
        Some((service, method)) if !service.is_empty() => vec![
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", service),
            KeyValue::new("rpc.method", method),
        ],
        _ => vec![KeyValue::new("http.route", name)],
    }
}

impl CallSpan {
    /// The call was answered with this status of gRPC.
    pub fn answered(&self, code: Code) {
        self.open.lock().answered = Some(code);
    }

    /// The future with this span as that of the thread while it is polled.
    pub fn around<F>(self: Arc<Self>, future: F) -> Around<F> {
        Around {
            span: Some(self),
            future,
        }
    }

    fn note(&self, noted: Noted<'_>) {
        let mut open = self.open.lock();
        let is_first = open.decisions == 0;
        let first_refused = noted.is_refused && open.refused == 0;
        open.decisions = open.decisions.saturating_add(1);
        open.refused = open.refused.saturating_add(noted.is_refused.into());
        let Some(data) = &mut open.data else { return };
        if is_first {
            let domain = noted.domain.to_owned();
            data.attributes
                .push(KeyValue::new("porteiro.domain", domain));
        }
        // Of a batch, the first one that was refused.
        if is_first || first_refused {
            let code = if noted.is_refused { "OVER_LIMIT" } else { "OK" };
            let reason = noted.reason.map(Value::from);
            for (key, value) in [
                ("porteiro.code", Some(Value::from(code))),
                ("porteiro.limit", noted.limit.map(Value::from)),
                ("porteiro.reason", reason),
            ] {
                data.attributes.retain(|known| known.key.as_str() != key);
                data.attributes
                    .extend(value.map(|value| KeyValue::new(key, value)));
            }
        }
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let open = self.open.get_mut();
        let Some(mut data) = open.data.take() else {
            return;
        };
        data.end_time = instant(self.spans.clock.now().wall).max(data.start_time);
        if open.decisions > 1 {
            for (key, count) in [
                ("porteiro.decisions", open.decisions),
                ("porteiro.refused", open.refused),
            ] {
                data.attributes.push(KeyValue::new(key, i64::from(count)));
            }
        }
        // A call that was never answered was given up by its caller.
        let code = open.answered.unwrap_or(Code::Cancelled);
        let is_rpc = |known: &KeyValue| known.key.as_str() == "rpc.system";
        if data.attributes.iter().any(is_rpc) {
            let number = i64::from(i32::from(code));
            data.attributes
                .push(KeyValue::new("rpc.grpc.status_code", number));
        }
        if code != Code::Ok {
            data.status = Status::error(code.description());
        }
        if self.spans.queue.try_send(data).is_err() {
            self.spans.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// The span of the call that is polled on this thread.
    static NOW: Cell<Option<Arc<CallSpan>>> = const { Cell::new(None) };
}

/// Adds to the span of the call at hand, if there is one. `what` is asked for only then.
#[inline]
pub fn note<'n>(what: impl FnOnce() -> Noted<'n>) {
    if let Some(span) = current() {
        span.note(what());
    }
}

/// The span of the call at hand, to be kept until something ends that outlives the call.
#[inline]
pub fn current() -> Option<Arc<CallSpan>> {
    let span = NOW.take()?;
    NOW.set(Some(Arc::clone(&span)));
    Some(span)
}

/// The future with the span of the call at hand, for what outlives the call.
pub fn carried<F: Future>(future: F) -> Around<Pin<Box<F>>> {
    within(current(), future)
}

/// The future with a span that was [`current`] once.
pub fn within<F: Future>(span: Option<Arc<CallSpan>>, future: F) -> Around<Pin<Box<F>>> {
    Around {
        span,
        future: Box::pin(future),
    }
}

/// See [`CallSpan::around`] and [`carried`].
#[derive(Debug)]
pub struct Around<F> {
    /// None while the future is polled, when the thread has it.
    span: Option<Arc<CallSpan>>,
    future: F,
}

impl<F: Future + Unpin> Future for Around<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = NOW.replace(self.span.take());
        let polled = Pin::new(&mut self.future).poll(cx);
        self.span = NOW.replace(before);
        polled
    }
}
