//! Our words for leases ↔ the wire's.

use prost_types::Duration;
use tonic::Status;

use crate::{
    model::{
        lease::{Cause, Criticality, Decision, EndedBy, Holder, Outcome},
        time::Span,
    },
    proto::porteiro::v1::{self as wire, acquire_response, lease_end},
};

/// A duration of the wire.
///
/// # Errors
/// `INVALID_ARGUMENT` with the field's name, when it is negative or no duration.
pub(super) fn span(field: &str, duration: Option<Duration>) -> Result<Option<Span>, Status> {
    let Some(duration) = duration else {
        return Ok(None);
    };
    let seconds = u64::try_from(duration.seconds);
    let nanos = u64::try_from(duration.nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    match (seconds, nanos) {
        (Ok(seconds), Some(nanos)) => Ok(Some(
            Span::from_secs(seconds).saturating_add(Span::from_nanos(nanos)),
        )),
        _ => Err(Status::invalid_argument(format!(
            "{field} must be a duration of 0 or more"
        ))),
    }
}

/// A span as the wire has it; spans beyond its range become its longest.
pub(super) fn duration(span: Span) -> Duration {
    let nanos = span.as_nanos();
    Duration {
        seconds: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanos % 1_000_000_000).unwrap_or_default(),
    }
}

pub(super) fn holder(wire: Option<&wire::Holder>) -> Holder {
    wire.map_or_else(Holder::default, |wire| Holder {
        id: wire.id.as_str().into(),
        instance: wire.instance.as_str().into(),
    })
}

pub(super) fn criticality(number: i32) -> Criticality {
    match wire::Criticality::try_from(number) {
        Ok(wire::Criticality::CriticalPlus) => Criticality::CriticalPlus,
        Ok(wire::Criticality::SheddablePlus) => Criticality::SheddablePlus,
        Ok(wire::Criticality::Sheddable) => Criticality::Sheddable,
        Ok(wire::Criticality::Unspecified | wire::Criticality::Critical) | Err(_) => {
            Criticality::Critical
        }
    }
}

pub(super) fn outcome(number: i32) -> Outcome {
    match lease_end::Outcome::try_from(number) {
        Ok(lease_end::Outcome::Success) => Outcome::Success,
        Ok(lease_end::Outcome::Dropped) => Outcome::Dropped,
        Ok(lease_end::Outcome::Ignored) | Err(_) => Outcome::Ignored,
    }
}

pub(super) fn decision(decision: Decision) -> acquire_response::Decision {
    use acquire_response::Decision as Wire;
    match decision {
        Decision::Granted => Wire::Granted,
        Decision::Replayed => Wire::Replayed,
        Decision::Refused => Wire::Refused,
        Decision::Never => Wire::Never,
        Decision::UnknownKey => Wire::UnknownKey,
        Decision::Conflict => Wire::Conflict,
        Decision::Ended(_) => Wire::Ended,
        Decision::Draining => Wire::Draining,
        Decision::WouldGrant => Wire::WouldGrant,
    }
}

pub(super) fn ended_by(by: EndedBy) -> wire::EndedBy {
    match by {
        EndedBy::Released => wire::EndedBy::ByRelease,
        EndedBy::Expired => wire::EndedBy::ByExpiry,
        EndedBy::SessionLost => wire::EndedBy::BySessionLoss,
        EndedBy::Revoked => wire::EndedBy::ByRevocation,
    }
}

pub(super) fn cause(cause: Cause) -> wire::Cause {
    match cause {
        Cause::Rate => wire::Cause::RateLimit,
        Cause::Concurrency => wire::Cause::ConcurrencyLimit,
        Cause::ShedCriticality => wire::Cause::ShedCriticality,
        Cause::ShedAdaptive => wire::Cause::ShedAdaptive,
        Cause::FairShare => wire::Cause::FairShare,
        Cause::QueueFull => wire::Cause::QueueFull,
        Cause::Deadline => wire::Cause::Deadline,
        Cause::Restart => wire::Cause::Restart,
    }
}
