//! `porteiro.v1.LimiterService`: what Envoy's protocol lacks. One file per method; here is the
//! service that has them.

mod acquire;
pub(super) mod batch;
pub(super) mod explain;
pub(super) mod peek;
mod release;
pub(super) mod reset;
mod session;
mod words;

use std::{pin::Pin, sync::Arc};

use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    api::{
        bounds::Bounds,
        deadline::grpc_timeout,
        envoy_rls::{AnswerOptions, RateLimit},
        privileges::Privileges,
    },
    engine::Engine,
    proto::porteiro::v1::{
        AcquireRequest, AcquireResponse, ExplainRequest, ExplainResponse, PeekRequest,
        PeekResponse, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse, ResetRequest,
        ResetResponse, SessionRequest, SessionResponse, ShouldRateLimitBatchRequest,
        ShouldRateLimitBatchResponse, limiter_service_server::LimiterService,
    },
    telemetry::spans,
};

/// The service.
#[derive(Clone, Debug)]
pub struct Limiter {
    engine: Arc<Engine>,
    bounds: Bounds,
    /// Answers batches.
    rate_limit: RateLimit,
}

impl Limiter {
    /// A service that decides with `engine`.
    pub fn new(engine: Arc<Engine>, bounds: Bounds) -> Self {
        Self {
            rate_limit: RateLimit::new(Arc::clone(&engine), bounds, AnswerOptions::default()),
            engine,
            bounds,
        }
    }

    /// The same, with `options` for the answers of batches.
    #[must_use]
    pub fn with_answers(mut self, options: AnswerOptions) -> Self {
        self.rate_limit = RateLimit::new(Arc::clone(&self.engine), self.bounds, options);
        self
    }

    /// The same, with something restricted to some callers. To be called last.
    #[must_use]
    pub fn with_privileges(mut self, privileges: Arc<Privileges>) -> Self {
        self.rate_limit = self.rate_limit.with_privileges(privileges);
        self
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
        release::release(&self.engine, request.get_ref(), None)
            .await
            .map(Response::new)
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        release::renew(&self.engine, request.get_ref())
            .await
            .map(Response::new)
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

    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let answer = explain::answer(&self.engine, self.bounds, request.get_ref());
        answer.await.map(Response::new)
    }

    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        self.rate_limit.privileges().check_reset(&request)?;
        let answer = reset::reset(&self.engine, self.bounds, request.get_ref());
        answer.await.map(Response::new)
    }

    async fn should_rate_limit_batch(
        &self,
        request: Request<ShouldRateLimitBatchRequest>,
    ) -> Result<Response<ShouldRateLimitBatchResponse>, Status> {
        let answer = batch::called(&self.rate_limit, &request).await;
        answer.map(Response::new)
    }

    type ShouldRateLimitStreamStream = Batches;

    async fn should_rate_limit_stream(
        &self,
        request: Request<Streaming<ShouldRateLimitBatchRequest>>,
    ) -> Result<Response<Self::ShouldRateLimitStreamStream>, Status> {
        let limiter = self.clone();
        let holds = self.rate_limit.privileges().holds(&request);
        let messages = request.into_inner();
        // The call's timeout is for the whole stream: no message has one of its own.
        let span = spans::current();
        let answers = messages.then(move |message| {
            let limiter = limiter.clone();
            spans::within(span.clone(), async move {
                let message = message?;
                batch::answer(&limiter.rate_limit, &message, holds, None).await
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

type Batches = Pin<Box<dyn Stream<Item = Result<ShouldRateLimitBatchResponse, Status>> + Send>>;
