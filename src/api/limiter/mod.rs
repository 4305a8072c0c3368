//! `porteiro.v1.LimiterService`: what Envoy's protocol lacks. One file per method; here is the
//! service that has them.

mod acquire;
pub(super) mod peek;
mod release;
pub(super) mod reset;
mod session;
mod words;

use std::sync::Arc;

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    api::{bounds::Bounds, deadline::grpc_timeout},
    engine::Engine,
    proto::porteiro::v1::{
        AcquireRequest, AcquireResponse, PeekRequest, PeekResponse, ReleaseRequest,
        ReleaseResponse, RenewRequest, RenewResponse, ResetRequest, ResetResponse, SessionRequest,
        SessionResponse, limiter_service_server::LimiterService,
    },
};

/// The service.
#[derive(Clone, Debug)]
pub struct Limiter {
    engine: Arc<Engine>,
    bounds: Bounds,
}

impl Limiter {
    /// A service that decides with `engine`.
    pub fn new(engine: Arc<Engine>, bounds: Bounds) -> Self {
        Self { engine, bounds }
    }
}

#[tonic::async_trait]
impl LimiterService for Limiter {
    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let timeout = grpc_timeout(request.metadata());
        let message = request.into_inner();
        let answer = acquire::answer(&self.engine, self.bounds, &message, timeout, None).await?;
        Ok(Response::new(answer))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        release::release(&self.engine, request.get_ref(), None).map(Response::new)
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        release::renew(&self.engine, request.get_ref()).map(Response::new)
    }

    type SessionStream = ReceiverStream<Result<SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let answers = session::open(Arc::clone(&self.engine), self.bounds, request.into_inner());
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn peek(&self, request: Request<PeekRequest>) -> Result<Response<PeekResponse>, Status> {
        let answer = peek::answer(&self.engine, self.bounds, request.get_ref());
        answer.await.map(Response::new)
    }

    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        let answer = reset::reset(&self.engine, self.bounds, request.get_ref());
        answer.await.map(Response::new)
    }
}
