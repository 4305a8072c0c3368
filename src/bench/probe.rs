//! One call before the load: is this a server of the protocol, and what does it say?

use crate::{
    bench::{Plan, call::Head, error::BenchError, lease, wire::Wire},
    proto::{
        envoy::service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus},
        },
        porteiro::v1::{AcquireResponse, ItemState},
    },
};

/// The answer to the first call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The overall code or the decision.
    pub overall: String,
    /// One text per descriptor.
    pub statuses: Vec<String>,
    /// A limit was named for at least one descriptor: rules apply to what is sent.
    pub limited: bool,
}

/// Calls once, with key 0. A lease is given back at once.
pub(super) async fn probe(plan: &Plan) -> Result<Probed, BenchError> {
    let wire = Wire::open(&plan.target, 1).await?;
    let mut template = plan.template.clone();
    let head = Head::new(&plan.target, template.method(), plan.deadline);
    let message = template.encode(0);
    let probed = if template.takes_leases() {
        let answer: AcquireResponse = wire.call(&head, message).await.map_err(BenchError::Probe)?;
        if !answer.lease_id.is_empty() {
            let head = Head::new(&plan.target, lease::RELEASE, plan.deadline);
            let released = lease::release(&wire, &head, answer.lease_id.clone()).await;
            released.map_err(BenchError::Probe)?;
        }
        acquired(&answer)
    } else {
        decided(&wire.call(&head, message).await.map_err(BenchError::Probe)?)
    };
    wire.close();
    Ok(probed)
}

fn decided(answer: &RateLimitResponse) -> Probed {
    Probed {
        overall: code(answer.overall_code).to_owned(),
        statuses: answer.statuses.iter().map(status).collect(),
        limited: answer
            .statuses
            .iter()
            .any(|status| status.current_limit.is_some()),
    }
}

fn code(code: i32) -> &'static str {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}

fn status(status: &DescriptorStatus) -> String {
    let code = code(status.code);
    match &status.current_limit {
        Some(limit) => {
            let unit = limit.unit().as_str_name().to_lowercase();
            format!("{code}, {} per {unit}", limit.requests_per_unit)
        }
        None => format!("{code}, no limit"),
    }
}

fn acquired(answer: &AcquireResponse) -> Probed {
    let item = |item: &ItemState| format!("{} of {} in flight", item.in_flight, item.limit);
    Probed {
        overall: answer.decision().as_str_name().to_owned(),
        statuses: answer.items.iter().map(item).collect(),
        limited: answer.items.iter().any(|item| item.limit > 0),
    }
}
