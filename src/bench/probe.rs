//! One call before the load: is this a server of the protocol, and what does it say?

use std::future::poll_fn;

use crate::{
    bench::{
        Plan,
        call::{self, Failure, Head},
        connection::Slot,
        run::BenchError,
    },
    proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code},
};

/// The method that is called.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The answer to the first call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// One text per descriptor: what its status says.
    pub statuses: Vec<String>,
    /// The overall code.
    pub overall: String,
    /// A limit was named for at least one descriptor: rules apply to what is sent.
    pub limited: bool,
}

/// Calls once, with key 0.
pub(super) async fn probe(plan: &Plan) -> Result<Probed, BenchError> {
    let slot = Slot::open(&plan.target).await?;
    let answered = once(plan, &slot).await;
    slot.close();
    let answer = answered.map_err(BenchError::Probe)?;
    let code = |code: i32| match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    };
    let status = |status: &crate::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus| {
        let code = code(status.code);
        match &status.current_limit {
            Some(limit) => {
                let unit = limit.unit().as_str_name().to_lowercase();
                format!("{code}, {} per {unit}", limit.requests_per_unit)
            }
            None => format!("{code}, no limit"),
        }
    };
    Ok(Probed {
        overall: code(answer.overall_code).to_owned(),
        limited: answer
            .statuses
            .iter()
            .any(|status| status.current_limit.is_some()),
        statuses: answer.statuses.iter().map(status).collect(),
    })
}

async fn once(plan: &Plan, slot: &Slot) -> Result<RateLimitResponse, Failure> {
    let head = Head::new(&plan.target, SHOULD_RATE_LIMIT, plan.deadline);
    let message = plan.template.clone().encode(0);
    let mut sender = slot
        .with(|sender| sender.clone())
        .ok_or(Failure::Connection)?;
    let answer = match poll_fn(|cx| sender.poll_ready(cx)).await {
        Ok(()) => call::send(&mut sender, &head, message),
        Err(error) => Err(error),
    };
    match answer {
        Ok(answer) => call::answer(answer).await,
        Err(_broken) => Err(Failure::Connection),
    }
}
