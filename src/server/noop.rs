//! The empty decision: what the transport alone costs. Served by `porteiro serve --noop` as any
//! service of the framework is: prost reads the message, the handler is an `async fn`.

use tonic::{Request, Response, Status, async_trait};

use crate::{
    api::wire::Asked,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
        rate_limit_service_server::RateLimitService,
    },
};

/// Answers OK to everything, with one status, and looks at nothing.
#[derive(Clone, Copy, Debug)]
pub struct Noop;

#[async_trait]
impl RateLimitService for Noop {
    async fn should_rate_limit(
        &self,
        _request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let ok = i32::from(Code::Ok);
        Ok(Response::new(RateLimitResponse {
            overall_code: ok,
            statuses: vec![DescriptorStatus {
                code: ok,
                ..DescriptorStatus::default()
            }],
            ..RateLimitResponse::default()
        }))
    }
}

impl Asked for Noop {}
