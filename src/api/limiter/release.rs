//! Release and Renew: one status per lease.

use tonic::Status;

use super::words;
use crate::{
    api::status,
    engine::{DecideError, Engine},
    model::lease::{Holder, LeaseId, ReleaseStatus, RenewStatus},
    proto::porteiro::v1::{
        self as wire, LeaseEnd, LeaseRenewal, ReleaseRequest, ReleaseResponse, ReleaseResult,
        RenewRequest, RenewResponse, RenewResult, release_result, renew_result,
    },
    store::lease::Release,
};

/// Most leases of one request.
const MOST_LEASES: usize = 1_000;

/// Ends leases. On a session, `holder` is the session's.
///
/// # Errors
/// `INVALID_ARGUMENT` for too many leases or an odd duration; what is wrong with single leases is
/// in their statuses. `UNAVAILABLE` when the shared store is away: the leases end when it is back,
/// and asking again does no harm.
pub(super) async fn release(
    engine: &Engine,
    request: &ReleaseRequest,
    holder: Option<&Holder>,
) -> Result<ReleaseResponse, Status> {
    within_bounds(request.leases.len())?;
    let own = words::holder(request.holder.as_ref());
    let holder = holder.unwrap_or(&own);
    let now = engine.clock().now();
    let mut ends = Vec::with_capacity(request.leases.len());
    let mut known = Vec::with_capacity(request.leases.len());
    for end in &request.leases {
        let held = words::span("held", end.held)?;
        let service_time = words::span("service_time", end.service_time)?;
        let id = end.lease_id.parse::<LeaseId>();
        known.push(id.is_ok());
        ends.extend(id.map(|id| Release {
            id,
            holder: Some(&*holder.id),
            outcome: words::outcome(end.outcome),
            held,
            service_time,
            actual_permits: end.actual_permits,
        }));
    }
    let told = engine.leases().release(&ends, now).await;
    let mut told = told
        .map_err(|error| status::of(&DecideError::Store(error)))?
        .into_iter();
    let result = |(end, known): (&LeaseEnd, bool)| {
        // A text that is no id is an id that nobody knows: the batch goes on.
        let status = known.then(|| told.next()).flatten();
        result_of(end, status.unwrap_or(ReleaseStatus::Unknown))
    };
    Ok(ReleaseResponse {
        results: request.leases.iter().zip(known).map(result).collect(),
    })
}

/// Prolongs leases.
///
/// # Errors
/// As [`release`]; with the shared store away nothing is prolonged.
pub(super) async fn renew(
    engine: &Engine,
    request: &RenewRequest,
) -> Result<RenewResponse, Status> {
    within_bounds(request.leases.len())?;
    let holder = words::holder(request.holder.as_ref());
    let now = engine.clock().now();
    let mut renewed = Vec::with_capacity(request.leases.len());
    let mut known = Vec::with_capacity(request.leases.len());
    for renewal in &request.leases {
        let ttl = words::span("ttl", renewal.ttl)?;
        let id = renewal.lease_id.parse::<LeaseId>();
        known.push(id.is_ok());
        renewed.extend(id.map(|id| (id, Some(&*holder.id), ttl)));
    }
    let told = engine.leases().renew(&renewed, now).await;
    let mut told = told
        .map_err(|error| status::of(&DecideError::Store(error)))?
        .into_iter();
    let result = |(renewal, known): (&LeaseRenewal, bool)| {
        let status = known.then(|| told.next()).flatten();
        renewal_of(renewal, status.unwrap_or(RenewStatus::Unknown))
    };
    Ok(RenewResponse {
        results: request.leases.iter().zip(known).map(result).collect(),
    })
}

fn within_bounds(leases: usize) -> Result<(), Status> {
    if leases > MOST_LEASES {
        let text = format!("{leases} leases in a request, at most {MOST_LEASES} are allowed");
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

fn result_of(end: &LeaseEnd, status: ReleaseStatus) -> ReleaseResult {
    let mut result = ReleaseResult {
        lease_id: end.lease_id.clone(),
        ..ReleaseResult::default()
    };
    result.set_status(wire_release(status));
    match status {
        ReleaseStatus::Released { held } => result.held = Some(words::duration(held)),
        ReleaseStatus::Late { by } => result.late_by = Some(words::duration(by)),
        _ => {}
    }
    result
}

fn wire_release(status: ReleaseStatus) -> release_result::Status {
    use release_result::Status as Wire;
    match status {
        ReleaseStatus::Released { .. } => Wire::Released,
        ReleaseStatus::AlreadyReleased => Wire::AlreadyReleased,
        ReleaseStatus::Late { .. } => Wire::Late,
        ReleaseStatus::SessionLost => Wire::SessionLost,
        ReleaseStatus::Revoked => Wire::Revoked,
        ReleaseStatus::Unknown => Wire::Unknown,
        ReleaseStatus::OtherBoot => Wire::OtherBoot,
        ReleaseStatus::NotHolder => Wire::NotHolder,
    }
}

fn renewal_of(renewal: &LeaseRenewal, status: RenewStatus) -> RenewResult {
    let mut result = RenewResult {
        lease_id: renewal.lease_id.clone(),
        ..RenewResult::default()
    };
    let wire_status = match status {
        RenewStatus::Renewed { expires_in, capped } => {
            result.expires_in = Some(words::duration(expires_in));
            result.capped = capped;
            renew_result::Status::Renewed
        }
        RenewStatus::Gone(by) => {
            result.set_ended_by(words::ended_by(by));
            renew_result::Status::Gone
        }
        RenewStatus::Unknown => renew_result::Status::Unknown,
        RenewStatus::OtherBoot => renew_result::Status::OtherBoot,
        RenewStatus::NotHolder => renew_result::Status::NotHolder,
    };
    result.set_status(wire_status);
    result
}

/// What a session answers to a message that is wrong.
pub(super) fn problem(status: &Status) -> wire::session_response::Problem {
    wire::session_response::Problem {
        code: i32::from(status.code()),
        text: status.message().to_owned(),
    }
}
