//! Batches of spans by OTLP over HTTP: one POST each, protobuf, over a connection that is kept.
//!
//! What may pass by itself (no connection, 429, 502, 503, 504) is tried again, as the exporter over
//! gRPC does, and with its pauses; the caller says when it has had enough.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::{
    tonic::collector::trace::v1::ExportTraceServiceRequest,
    transform::{
        common::tonic::ResourceAttributesWithSchema,
        trace::tonic::group_spans_by_resource_and_scope,
    },
};
use opentelemetry_sdk::{Resource, trace::SpanData};
use prost::Message as _;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;

use super::export::{CONNECT, SpanError};

/// Times that a batch is tried again.
const AGAIN: u32 = 3;
/// Before the first of them; twice as long before each that follows.
const PAUSE: Duration = Duration::from_millis(100);
/// Up to so much longer, so that replicas do not come together.
const JITTER: Duration = Duration::from_millis(100);
/// Most of an answer that is read for the sake of the connection.
const MOST_ANSWER: usize = 64 * 1024;

/// What sends them.
pub(super) struct HttpExporter {
    host: String,
    port: u16,
    path: Uri,
    headers: HeaderMap,
    resource: ResourceAttributesWithSchema,
    tls: Option<Tls>,
    /// A connection whose last answer was read to its end.
    kept: Option<SendRequest<Body>>,
}

struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// Why a batch did not arrive.
struct Failure {
    why: String,
    /// It may pass by itself.
    passes: bool,
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            why: error.to_string(),
            passes: true,
        }
    }
}

impl HttpExporter {
    /// To this URL, path and all.
    ///
    /// # Errors
    /// What is no URL, or names no host that a certificate could have.
    pub(super) fn new(
        url: &str,
        headers: &HeaderMap,
        resource: &Resource,
    ) -> Result<Self, SpanError> {
        let uri: Uri = url.parse()?;
        let host = uri.host().ok_or(SpanError::Host)?;
        // IPv6.
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let is_https = uri.scheme_str() == Some("https");
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut all = headers.clone();
        all.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-protobuf"),
        );
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // Without a name and password.
        let named = authority.rsplit('@').next().unwrap_or_default();
        all.insert(
            header::HOST,
            HeaderValue::from_str(named).map_err(|_| SpanError::Host)?,
        );
        Ok(Self {
            tls: is_https.then(|| Tls::to(&host)).transpose()?,
            port: uri.port_u16().unwrap_or(if is_https { 443 } else { 80 }),
            path: path.parse()?,
            host,
            headers: all,
            resource: resource.into(),
            kept: None,
        })
    }

    /// Sends a batch; the text of an error says why the collector does not have it.
    ///
    /// # Cancel safety
    /// Dropped before the end, the batch may have arrived; its connection is not used again.
    pub(super) async fn export(&mut self, batch: Vec<SpanData>) -> Result<(), String> {
        let message = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(batch, &self.resource),
        };
        let message = Bytes::from(message.encode_to_vec());
        let mut pause = PAUSE;
        for _ in 0..AGAIN {
            match self.post(message.clone()).await {
                Err(failure) if failure.passes => {
                    sleep(pause + JITTER.mul_f32(rand::random())).await;
                    pause *= 2;
                }
                done => return done.map_err(|failure| failure.why),
            }
        }
        let last = self.post(message).await;
        last.map_err(|failure| failure.why)
    }

    async fn post(&mut self, message: Bytes) -> Result<(), Failure> {
        let mut connection = match self.kept.take() {
            Some(kept) if !kept.is_closed() => kept,
            _ => timeout(CONNECT, self.connect()).await??,
        };
        connection.ready().await?;
        let mut request = Request::post(self.path.clone()).body(Body::from(message))?;
        *request.headers_mut() = self.headers.clone();
        let answer = connection.send_request(request).await?;
        let status = answer.status();
        if is_read_to_its_end(answer).await {
            self.kept = Some(connection);
        }
        if status.is_success() {
            return Ok(());
        }
        Err(Failure {
            why: format!("the collector answered {status}"),
            passes: matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
        })
    }

    async fn connect(&self) -> io::Result<SendRequest<Body>> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        tcp.set_nodelay(true)?;
        match &self.tls {
            None => begin(tcp).await,
            Some(tls) => begin(tls.connector.connect(tls.name.clone(), tcp).await?).await,
        }
    }
}

/// HTTP/1 on an open connection.
async fn begin(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<SendRequest<Body>> {
    let opened = http1::handshake(TokioIo::new(io)).await;
    let (sender, connection) = opened.map_err(io::Error::other)?;
    // It ends with the sender; what goes wrong is told there.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

/// Reads what else was answered, which says nothing that we would act on.
async fn is_read_to_its_end(answer: Response<Incoming>) -> bool {
    let mut body = pin!(answer.into_body());
    let mut seen = 0;
    loop {
        match std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => seen += frame.data_ref().map_or(0, Bytes::len),
        }
        if seen > MOST_ANSWER {
            return false;
        }
    }
}

impl Tls {
    /// With the roots of the system.
    fn to(host: &str) -> Result<Self, SpanError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name: ServerName::try_from(host.to_owned()).map_err(|_| SpanError::Host)?,
        })
    }
}
