//! A service that answers when the test says so, like one whose calls need a store.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use porteiro::{
    api::wire::Asked,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_server::RateLimitService,
    },
};
use tokio::sync::{Notify, Semaphore};
use tonic::{Request, Response, Status, async_trait};

/// Holds every call until there is a permit for it. Clones share everything.
#[derive(Clone)]
pub(crate) struct Held {
    /// Notified of each call.
    pub(crate) asked: Arc<Notify>,
    /// A permit lets a call go on.
    pub(crate) go: Arc<Semaphore>,
    calls: Arc<AtomicU64>,
}

impl Held {
    pub(crate) fn new() -> Self {
        Self {
            asked: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
            calls: Arc::default(),
        }
    }

    /// Calls that came as far as this.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Asked for Held {}

#[async_trait]
impl RateLimitService for Held {
    async fn should_rate_limit(
        &self,
        _request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.asked.notify_one();
        self.go.acquire().await.unwrap().forget();
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            ..RateLimitResponse::default()
        }))
    }
}
