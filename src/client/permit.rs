//! A permit: a lease that renews itself and is given back when it is dropped.

use std::time::Duration;

use tokio::{
    runtime::Handle,
    task::{self, AbortHandle},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::{
    client::clock,
    proto::porteiro::v1::{
        AcquireRequest, AcquireResponse, Holder, LeaseEnd, LeaseRenewal, ReleaseRequest,
        RenewRequest, lease_end::Outcome, limiter_service_client::LimiterServiceClient,
        renew_result,
    },
};

/// Between two tries to renew when the server does not answer.
const RENEW_AGAIN: Duration = Duration::from_millis(200);

/// Permits that are held. Dropped, they are given back without an outcome; say how the work went
/// with [`Permit::succeed`] or [`Permit::fail`], so that the server learns.
#[derive(Debug)]
pub struct Permit {
    service: LimiterServiceClient<Channel>,
    answer: AcquireResponse,
    holder: Option<Holder>,
    granted: Instant,
    renewal: Option<AbortHandle>,
    lost: CancellationToken,
    outcome: Outcome,
}

impl Permit {
    /// `asked` is when the request was sent: the server's clock for the lease started later.
    pub(super) fn new(
        service: LimiterServiceClient<Channel>,
        request: &AcquireRequest,
        answer: AcquireResponse,
        asked: Instant,
    ) -> Self {
        let lost = CancellationToken::new();
        let holder = request.holder.clone();
        let renewal = (!answer.lease_id.is_empty()).then(|| {
            let keeper = Keeper {
                service: service.clone(),
                lease_id: answer.lease_id.clone(),
                holder: holder.clone(),
                ttl: request.ttl,
                lost: lost.clone(),
            };
            let life = duration(answer.expires_in);
            task::spawn(keeper.keep(asked, life, duration(answer.renew_after))).abort_handle()
        });
        Self {
            service,
            answer,
            holder,
            granted: asked,
            renewal,
            lost,
            outcome: Outcome::Ignored,
        }
    }

    /// The server's answer: lease id, fence, how the limits stand.
    pub fn answer(&self) -> &AcquireResponse {
        &self.answer
    }

    /// Returns when the lease is lost (it could not be renewed, or the server ended it): stop the
    /// work, somebody else may hold the permit now.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Gives the permit back: the work was done.
    pub fn succeed(mut self) {
        self.outcome = Outcome::Success;
    }

    /// Gives the permit back: the work failed for want of capacity.
    pub fn fail(mut self) {
        self.outcome = Outcome::Dropped;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        let Ok(runtime) = Handle::try_current() else {
            // Outside of a runtime nobody can send: the lease ends by its TTL.
            return;
        };
        if self.answer.lease_id.is_empty() {
            return;
        }
        let end = LeaseEnd {
            lease_id: std::mem::take(&mut self.answer.lease_id),
            outcome: self.outcome.into(),
            held: self.granted.elapsed().try_into().ok(),
            service_time: None,
            actual_permits: None,
        };
        let request = ReleaseRequest {
            leases: vec![end],
            holder: self.holder.take(),
        };
        let mut service = self.service.clone();
        runtime.spawn(async move {
            // Lost on the way, the lease ends by its TTL.
            let _ = service.release(request).await;
        });
    }
}

/// Renews a lease until it is told to stop.
struct Keeper {
    service: LimiterServiceClient<Channel>,
    lease_id: String,
    holder: Option<Holder>,
    ttl: Option<prost_types::Duration>,
    lost: CancellationToken,
}

impl Keeper {
    async fn keep(mut self, asked: Instant, mut life: Duration, mut renew_after: Duration) {
        let mut started = asked;
        loop {
            sleep_until(started + renew_after.min(life)).await;
            let asked = clock::now();
            match self.renew().await {
                Renewal::For(new_life) => {
                    started = asked;
                    life = new_life;
                    renew_after = new_life / 2;
                }
                Renewal::Gone => return self.lost.cancel(),
                Renewal::NoAnswer => {
                    renew_after = asked.duration_since(started) + RENEW_AGAIN;
                    if asked >= started + life {
                        return self.lost.cancel();
                    }
                }
            }
        }
    }

    async fn renew(&mut self) -> Renewal {
        let renewal = LeaseRenewal {
            lease_id: self.lease_id.clone(),
            ttl: self.ttl,
        };
        let request = RenewRequest {
            leases: vec![renewal],
            holder: self.holder.clone(),
        };
        let Ok(answer) = self.service.renew(request).await else {
            return Renewal::NoAnswer;
        };
        match answer.into_inner().results.first() {
            Some(result) if result.status() == renew_result::Status::Renewed => {
                Renewal::For(duration(result.expires_in))
            }
            _ => Renewal::Gone,
        }
    }
}

enum Renewal {
    For(Duration),
    Gone,
    NoAnswer,
}

fn duration(wire: Option<prost_types::Duration>) -> Duration {
    wire.and_then(|wire| wire.try_into().ok())
        .unwrap_or_default()
}
