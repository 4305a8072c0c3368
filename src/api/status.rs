//! One table from our errors to gRPC statuses, with the reason beside each row.

use tonic::Status;

use crate::engine::DecideError;

/// The status of an error.
pub fn of(error: &DecideError) -> Status {
    match error {
        // The reference says UNKNOWN, which no alert can tell from an outage.
        DecideError::BadRequest(what) => Status::invalid_argument(*what),
        // A gRPC error and not `overall_code: UNKNOWN`, which Envoy lets pass whatever its
        // failure mode says.
        DecideError::NoRules => Status::unavailable(error.to_string()),
    }
}
