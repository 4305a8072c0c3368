//! The gRPC services of a connection, and the door to each.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use hyper::{body::Incoming, service::Service};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Status,
    body::Body,
    codegen::Service as _,
    server::{Grpc, UnaryService},
    service::Routes,
};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server as reflection;

use super::{
    codec::Raw,
    health::{GrpcHealth, Health},
    prompt::{Lateness, Prompt},
};
use crate::{
    api::{
        bounds::Bounds,
        deadline::timeout_of,
        wire::{Answer, Asked, Encoded},
    },
    proto,
    telemetry::spans::{CallSpan, Spans},
};

/// All services of the gRPC port. Each worker has its own clone.
pub(super) struct Services<R> {
    rate_limit: Arc<R>,
    others: Routes,
    max_message: usize,
    lateness: Arc<Lateness>,
    spans: Option<Arc<Spans>>,
}

impl<R> Clone for Services<R> {
    fn clone(&self) -> Self {
        Self {
            rate_limit: Arc::clone(&self.rate_limit),
            others: self.others.clone(),
            max_message: self.max_message,
            lateness: Arc::clone(&self.lateness),
            spans: self.spans.clone(),
        }
    }
}

impl<R: Asked> Services<R> {
    /// The rate limit service and `others`, health and reflection beside them.
    pub(super) fn new(
        rate_limit: Arc<R>,
        others: Routes,
        health: Health,
        bounds: Bounds,
        drain: CancellationToken,
        lateness: Lateness,
        spans: Option<Arc<Spans>>,
    ) -> Result<Self, reflection::Error> {
        let builder = || {
            reflection::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let max = bounds.max_message;
        let health = GrpcHealth { health, end: drain };
        let others = others
            .add_service(HealthServer::new(health).max_decoding_message_size(max))
            .add_service(builder().build_v1()?.max_decoding_message_size(max))
            .add_service(builder().build_v1alpha()?.max_decoding_message_size(max))
            .prepare();
        Ok(Self {
            rate_limit,
            others,
            max_message: max,
            lateness: Arc::new(lateness),
            spans,
        })
    }
}

impl<R> Services<R> {
    fn in_time(&self, request: Request<Incoming>) -> Request<Prompt> {
        let timeout = timeout_of(request.headers());
        request.map(|body| Prompt {
            body,
            timeout,
            lateness: Arc::clone(&self.lateness),
            asked: None,
        })
    }
}

impl<R: Asked> Service<Request<Incoming>> for Services<R> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Call;

    fn call(&self, request: Request<Incoming>) -> Call {
        let span = self.spans.as_ref().and_then(|spans| {
            let name = traced(request.uri().path())?;
            spans.begin(request.headers(), name)
        });
        // Those that are called all the time do not go through the router.
        let future: Answering = match request.uri().path() {
            SHOULD_RATE_LIMIT => {
                let method = ShouldRateLimit(Arc::clone(&self.rate_limit));
                let mut grpc = Grpc::new(Raw).max_decoding_message_size(self.max_message);
                let request = self.in_time(request);
                Box::pin(async move { Ok(grpc.unary(method, request).await) })
            }
            SHOULD_RATE_LIMIT_BATCH if R::BATCHES => {
                let method = ShouldRateLimitBatch(Arc::clone(&self.rate_limit));
                let mut grpc = Grpc::new(Raw).max_decoding_message_size(self.max_message);
                let request = self.in_time(request);
                Box::pin(async move { Ok(grpc.unary(method, request).await) })
            }
            _ => {
                let mut others = self.others.clone();
                Box::pin(others.call(request))
            }
        };
        Call {
            future: match &span {
                None => future,
                Some(span) => Box::pin(Arc::clone(span).around(future)),
            },
            max_message: self.max_message,
            span,
        }
    }
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const SHOULD_RATE_LIMIT_BATCH: &str = "/porteiro.v1.LimiterService/ShouldRateLimitBatch";

/// Calls that have spans, by what a span is called. A closed set: a path is the caller's.
const TRACED: [&str; 10] = [
    "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    "porteiro.v1.LimiterService/ShouldRateLimitBatch",
    "porteiro.v1.LimiterService/ShouldRateLimitStream",
    "porteiro.v1.LimiterService/Acquire",
    "porteiro.v1.LimiterService/Release",
    "porteiro.v1.LimiterService/Renew",
    "porteiro.v1.LimiterService/Session",
    "porteiro.v1.LimiterService/Peek",
    "porteiro.v1.LimiterService/Explain",
    "porteiro.v1.LimiterService/Reset",
];

fn traced(path: &str) -> Option<&'static str> {
    let path = path.strip_prefix('/')?;
    TRACED.into_iter().find(|name| *name == path)
}

/// What `tonic-build` would make of the method, but for the codec.
struct ShouldRateLimit<R>(Arc<R>);

impl<R: Asked> UnaryService<Vec<u8>> for ShouldRateLimit<R> {
    type Response = Encoded;
    type Future = Answer;

    fn call(&mut self, request: tonic::Request<Vec<u8>>) -> Answer {
        self.0.ask(request)
    }
}

/// The same for a batch.
struct ShouldRateLimitBatch<R>(Arc<R>);

impl<R: Asked> UnaryService<Vec<u8>> for ShouldRateLimitBatch<R> {
    type Response = Encoded;
    type Future = Answer;

    fn call(&mut self, request: tonic::Request<Vec<u8>>) -> Self::Future {
        self.0.ask_batch(request)
    }
}

/// One call on its way to an answer.
pub(super) struct Call {
    future: Answering,
    max_message: usize,
    /// None when it is not recorded.
    span: Option<Arc<CallSpan>>,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Future for Call {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(self.future.as_mut().poll(cx));
        let response = name_the_bound(response, self.max_message);
        if let Some(span) = &self.span {
            // Only refusals have a status in their head.
            let status = Status::from_header_map(response.headers());
            span.answered(status.map_or(Code::Ok, |status| status.code()));
        }
        Poll::Ready(Ok(response))
    }
}

/// tonic answers a message over the bound with `OUT_OF_RANGE`, which gRPC means for reading past
/// an end. Every other gRPC server says `RESOURCE_EXHAUSTED`, and retry policies look at it.
fn name_the_bound(response: Response<Body>, max_message: usize) -> Response<Body> {
    // Only refusals have a status in their head.
    let headers = response.headers();
    if !headers.contains_key(Status::GRPC_STATUS) {
        return response;
    }
    match Status::from_header_map(headers) {
        Some(status)
            if status.code() == Code::OutOfRange && status.message().starts_with(TONIC_SAYS) =>
        {
            let text = format!("the message is larger than max-message, {max_message} bytes");
            Status::resource_exhausted(text).into_http()
        }
        _ => response,
    }
}

/// How tonic's text begins.
const TONIC_SAYS: &str = "Error, decoded message length too large";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_oversized_message_is_renamed() {
        let response = name_the_bound(
            Status::out_of_range(format!("{TONIC_SAYS}: found 65")).into_http(),
            64,
        );
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("max-message, 64 bytes"));
        let response = name_the_bound(Status::not_found("x").into_http(), 64);
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), Code::NotFound);
    }
}
