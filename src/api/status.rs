//! One table from our errors to gRPC statuses, with the reason beside each row.

use tonic::Status;

use crate::{engine::DecideError, store::lease::AskError};

/// The status of an error.
pub fn of(error: &DecideError) -> Status {
    match error {
        // The reference says UNKNOWN, which no alert can tell from an outage.
        DecideError::BadRequest(what) => Status::invalid_argument(*what),
        // A gRPC error and not `overall_code: UNKNOWN`, which Envoy lets pass whatever its
        // failure mode says.
        DecideError::NoRules | DecideError::Store(_) => Status::unavailable(error.to_string()),
        DecideError::Exhausted(error) => of_ask(*error),
        DecideError::TooLate => Status::deadline_exceeded(error.to_string()),
    }
}

/// The status of a request for permits that cannot be decided.
pub fn of_ask(error: AskError) -> Status {
    match error {
        AskError::NoSession => Status::failed_precondition(error.to_string()),
        // A table is full: the caller, or all of them, hold too much.
        AskError::HolderFull | AskError::SessionFull | AskError::BookFull => {
            Status::resource_exhausted(error.to_string())
        }
        _ => Status::invalid_argument(error.to_string()),
    }
}
