//! Spans on their way to a collector: OTLP over gRPC or HTTP.
//!
//! One task takes them from the queue, a batch at a time, and sends it; a batch that cannot be sent
//! within [`PATIENCE`] is given up and counted. While the collector is away the queue fills, and
//! what finds it full is dropped and counted. Nothing of it is felt by a call.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, uri::InvalidUri};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{RandomIdGenerator, SpanData, SpanExporter as _},
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{ClientTlsConfig, Endpoint};

use super::{Spans, of_ratio, over_http::HttpExporter};
use crate::{model::time::Clock, telemetry::logging::Throttle};

/// Spans that wait for the collector; one more is dropped.
const QUEUE: usize = 8_192;
/// Most spans of a batch.
const BATCH: usize = 512;
/// How long a batch waits to become a full one.
const LINGER: Duration = Duration::from_secs(1);
/// How long sending a batch may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long connecting may take.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// Where spans go, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanOptions {
    /// `http://HOST:PORT`, or `https://…` with the roots of the system; over HTTP with the path
    /// that batches are posted to.
    pub collector: String,
    /// How they are sent.
    pub protocol: Protocol,
    /// What is sent with each batch over HTTP. Those over gRPC are read from
    /// `OTEL_EXPORTER_OTLP_HEADERS` by the exporter itself.
    pub headers: HeaderMap,
    /// Share of the calls without a caller's span that is recorded, from 0 to 1.
    pub ratio: f32,
    /// `service.name`.
    pub service: String,
    /// More of the resource: `service.namespace` and the like.
    pub resource: Vec<(String, String)>,
}

/// How spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP/1.1, messages in protobuf.
    Http,
}

/// What became of spans.
#[derive(Debug, Default)]
pub struct Counts {
    /// The collector has them.
    exported: AtomicU64,
    /// The queue was full.
    pub(super) dropped: AtomicU64,
    /// The collector did not take them.
    failed: AtomicU64,
}

impl Counts {
    /// Appends the counters in Prometheus' text format.
    pub fn render(&self, out: &mut String) {
        let name = "porteiro_spans_total";
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "# HELP {name} Spans of calls by what became of them: exported, dropped because the \
             queue was full, failed to reach the collector.\n# TYPE {name} counter"
        );
        for (outcome, count) in [
            ("exported", &self.exported),
            ("dropped", &self.dropped),
            ("failed", &self.failed),
        ] {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}{{outcome=\"{outcome}\"}} {count}");
        }
    }
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    /// The address of the collector; not shown, it may hold a password.
    #[error("the address of the collector: {0}")]
    Collector(#[from] tonic::transport::Error),
    /// The same.
    #[error("the address of the collector: {0}")]
    Url(#[from] InvalidUri),
    /// The same.
    #[error("the address of the collector: no host that can be called")]
    Host,
    /// No TLS can be had.
    #[error("TLS to the collector: {0}")]
    Tls(#[from] rustls::Error),
    /// What the exporter says.
    #[error("spans cannot be exported: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// The export while it goes on.
#[derive(Debug)]
pub struct Export {
    stop: CancellationToken,
    task: JoinHandle<()>,
    counts: Arc<Counts>,
}

/// Begins to export; to be called on a runtime, which it lives on.
///
/// # Errors
/// An address that is none.
pub fn begin(options: &SpanOptions, clock: Clock) -> Result<(Arc<Spans>, Export), SpanError> {
    let exporter = Exporter::new(options)?;
    let (queue, spans) = mpsc::channel(QUEUE);
    let counts = Arc::new(Counts::default());
    let stop = CancellationToken::new();
    let sending = Sending {
        exporter,
        spans,
        counts: Arc::clone(&counts),
        clock: clock.clone(),
        failures: Throttle::default(),
    };
    let export = Export {
        task: tokio::spawn(sending.run(stop.clone())),
        stop,
        counts: Arc::clone(&counts),
    };
    let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
        .with_version(env!("CARGO_PKG_VERSION"))
        .build();
    let spans = Spans {
        recorded: of_ratio(options.ratio),
        ids: RandomIdGenerator::default(),
        scope,
        queue,
        counts,
        clock,
    };
    Ok((Arc::new(spans), export))
}

/// What sends a batch.
enum Exporter {
    Grpc(SpanExporter),
    Http(HttpExporter),
}

impl Exporter {
    fn new(options: &SpanOptions) -> Result<Self, SpanError> {
        let (url, resource) = (options.collector.as_str(), resource(options));
        Ok(match options.protocol {
            Protocol::Grpc => Self::Grpc(over_grpc(url, &resource)?),
            Protocol::Http => Self::Http(HttpExporter::new(url, &options.headers, &resource)?),
        })
    }

    async fn export(&mut self, batch: Vec<SpanData>) -> Result<(), String> {
        match self {
            Self::Grpc(exporter) => {
                let exported = exporter.export(batch).await;
                exported.map_err(|error| error.to_string())
            }
            Self::Http(exporter) => exporter.export(batch).await,
        }
    }
}

fn over_grpc(url: &str, resource: &Resource) -> Result<SpanExporter, SpanError> {
    let mut endpoint = Endpoint::from_shared(url.to_owned())?.connect_timeout(CONNECT);
    if url.starts_with("https://") {
        let tls = ClientTlsConfig::new().with_native_roots();
        endpoint = endpoint.tls_config(tls)?;
    }
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_channel(endpoint.connect_lazy())
        .build()?;
    exporter.set_resource(resource);
    Ok(exporter)
}

fn resource(options: &SpanOptions) -> Resource {
    let more = options.resource.iter();
    Resource::builder()
        .with_attributes(more.map(|(key, value)| KeyValue::new(key.clone(), value.clone())))
        .with_service_name(options.service.clone())
        .build()
}

impl Export {
    /// What became of spans so far.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Sends what waits and ends, at the latest after `deadline`.
    pub async fn end(self, deadline: Duration) {
        self.stop.cancel();
        let abort = self.task.abort_handle();
        if timeout(deadline, self.task).await.is_err() {
            abort.abort();
            tracing::warn!("spans are lost: the collector did not take them in time");
        }
    }
}

struct Sending {
    exporter: Exporter,
    spans: mpsc::Receiver<SpanData>,
    counts: Arc<Counts>,
    clock: Clock,
    failures: Throttle,
}

impl Sending {
    async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                _ = self.spans.recv_many(&mut batch, BATCH) => {}
                () = stop.cancelled() => self.spans.close(),
            }
            if batch.len() < BATCH && !stop.is_cancelled() {
                tokio::select! {
                    () = sleep(LINGER) => {}
                    () = stop.cancelled() => {}
                }
            }
            while batch.len() < BATCH
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                // Closed, and nothing is left.
                return;
            }
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        let problem = match timeout(PATIENCE, self.exporter.export(batch)).await {
            Ok(Ok(())) => {
                self.counts.exported.fetch_add(count, Ordering::Relaxed);
                return;
            }
            Ok(Err(problem)) => problem,
            Err(_) => "it took too long".to_owned(),
        };
        self.counts.failed.fetch_add(count, Ordering::Relaxed);
        if let Some(more) = self.failures.pass(self.clock.now().steady) {
            tracing::warn!(problem, more, "spans did not reach the collector");
        }
    }
}
