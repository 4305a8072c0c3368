//! Release and Renew: one status per lease.

use tonic::Status;

use super::words;
use crate::{
    engine::Engine,
    model::{
        lease::{Holder, LeaseId, ReleaseStatus, RenewStatus},
        time::Now,
    },
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
/// in their statuses.
pub(super) fn release(
    engine: &Engine,
    request: &ReleaseRequest,
    holder: Option<&Holder>,
) -> Result<ReleaseResponse, Status> {
    within_bounds(request.leases.len())?;
    let own = words::holder(request.holder.as_ref());
    let holder = holder.unwrap_or(&own);
    let now = engine.clock().now();
    let one = |end: &LeaseEnd| end_lease(engine, end, holder, now);
    let results = request.leases.iter().map(one).collect::<Result<_, _>>()?;
    Ok(ReleaseResponse { results })
}

/// Prolongs leases.
///
/// # Errors
/// As [`release`].
pub(super) fn renew(engine: &Engine, request: &RenewRequest) -> Result<RenewResponse, Status> {
    within_bounds(request.leases.len())?;
    let holder = words::holder(request.holder.as_ref());
    let now = engine.clock().now();
    let one = |renewal: &LeaseRenewal| prolong(engine, renewal, &holder, now);
    let results = request.leases.iter().map(one).collect::<Result<_, _>>()?;
    Ok(RenewResponse { results })
}

fn within_bounds(leases: usize) -> Result<(), Status> {
    if leases > MOST_LEASES {
        let text = format!("{leases} leases in a request, at most {MOST_LEASES} are allowed");
        return Err(Status::invalid_argument(text));
    }
    Ok(())
}

fn end_lease(
    engine: &Engine,
    end: &LeaseEnd,
    holder: &Holder,
    now: Now,
) -> Result<ReleaseResult, Status> {
    let held = words::span("held", end.held)?;
    let service_time = words::span("service_time", end.service_time)?;
    // A text that is no id is an id that nobody knows: the batch goes on.
    let status = end
        .lease_id
        .parse::<LeaseId>()
        .map_or(ReleaseStatus::Unknown, |id| {
            let outcome = words::outcome(end.outcome);
            let holder = Some(&*holder.id);
            engine.leases().release(
                &Release {
                    id,
                    holder,
                    outcome,
                    held,
                    service_time,
                },
                now,
            )
        });
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
    Ok(result)
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

fn prolong(
    engine: &Engine,
    renewal: &LeaseRenewal,
    holder: &Holder,
    now: Now,
) -> Result<RenewResult, Status> {
    let ttl = words::span("ttl", renewal.ttl)?;
    let status = renewal
        .lease_id
        .parse::<LeaseId>()
        .map_or(RenewStatus::Unknown, |id| {
            engine.leases().renew(&id, Some(&*holder.id), ttl, now)
        });
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
    Ok(result)
}

/// What a session answers to a message that is wrong.
pub(super) fn problem(status: &Status) -> wire::session_response::Problem {
    wire::session_response::Problem {
        code: i32::from(status.code()),
        text: status.message().to_owned(),
    }
}
