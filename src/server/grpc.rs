//! The gRPC services of a connection, and the door to each.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use http::{Request, Response};
use hyper::{body::Incoming, service::Service};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, codegen::Service as _, service::Routes};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server as reflection;

use super::{
    Options,
    health::{GrpcHealth, Health},
    unary::{Body, unary},
};
use crate::proto::{
    self,
    envoy::service::ratelimit::v3::rate_limit_service_server::{
        RateLimitService, RateLimitServiceServer,
    },
};

/// All services of the gRPC port. Each worker has its own clone.
pub(super) struct Services<R> {
    rate_limit: Arc<R>,
    /// The same by tonic's means, where those are to be measured.
    by_tonic: Option<RateLimitServiceServer<R>>,
    others: Routes,
    max_message: usize,
}

impl<R> Clone for Services<R> {
    fn clone(&self) -> Self {
        Self {
            rate_limit: Arc::clone(&self.rate_limit),
            by_tonic: self.by_tonic.clone(),
            others: self.others.clone(),
            max_message: self.max_message,
        }
    }
}

impl<R: RateLimitService> Services<R> {
    /// The rate limit service and `others`, health and reflection beside them.
    pub(super) fn new(
        rate_limit: Arc<R>,
        others: Routes,
        health: Health,
        options: &Options,
        drain: CancellationToken,
    ) -> Result<Self, reflection::Error> {
        let builder = || {
            reflection::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let max = options.bounds.max_message;
        let health = GrpcHealth { health, end: drain };
        let others = others
            .add_service(HealthServer::new(health).max_decoding_message_size(max))
            .add_service(builder().build_v1()?.max_decoding_message_size(max))
            .add_service(builder().build_v1alpha()?.max_decoding_message_size(max))
            .prepare();
        let by_tonic = options.by_tonic.then(|| {
            RateLimitServiceServer::from_arc(Arc::clone(&rate_limit)).max_decoding_message_size(max)
        });
        Ok(Self {
            rate_limit,
            by_tonic,
            others,
            max_message: max,
        })
    }
}

impl<R: RateLimitService> Service<Request<Incoming>> for Services<R> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Call;

    fn call(&self, request: Request<Incoming>) -> Call {
        let max_message = self.max_message;
        // The one that is called all the time goes neither through the router nor through tonic.
        match (request.uri().path(), &self.by_tonic) {
            (SHOULD_RATE_LIMIT, None) => {
                let service = Arc::clone(&self.rate_limit);
                Box::pin(unary(request, max_message, async move |request| {
                    service.should_rate_limit(request).await
                }))
            }
            (SHOULD_RATE_LIMIT, Some(by_tonic)) => {
                translated(by_tonic.clone().call(request), max_message)
            }
            _ => translated(self.others.clone().call(request), max_message),
        }
    }
}

/// One call on its way to an answer.
type Call = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// An answer of tonic's, in our body and with our words for a message over the bound.
fn translated(
    answer: impl Future<Output = Result<Response<tonic::body::Body>, Infallible>> + Send + 'static,
    max_message: usize,
) -> Call {
    Box::pin(async move {
        answer
            .await
            .map(|response| name_the_bound(response, max_message).map(Body::Tonic))
    })
}

/// tonic answers a message over the bound with `OUT_OF_RANGE`, which gRPC means for reading past
/// an end. Every other gRPC server says `RESOURCE_EXHAUSTED`, and retry policies look at it.
fn name_the_bound(
    response: Response<tonic::body::Body>,
    max_message: usize,
) -> Response<tonic::body::Body> {
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
