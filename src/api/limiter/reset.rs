//! Reset: counters are forgotten.

use tonic::Status;

use crate::{
    api::{bounds::Bounds, envoy_rls, status},
    engine::Engine,
    proto::porteiro::v1::{ResetRequest, ResetResponse},
};

/// Does it, and says how many there were.
///
/// # Errors
/// `INVALID_ARGUMENT`, `UNAVAILABLE`.
pub(in crate::api) async fn reset(
    engine: &Engine,
    bounds: Bounds,
    message: &ResetRequest,
) -> Result<ResetResponse, Status> {
    let request = envoy_rls::named(&message.domain, &message.descriptors, bounds)?;
    let installed = engine.installed();
    let reset = engine.reset(&installed, &request, message.revoke_leases);
    let forgotten = reset.await.map_err(|error| status::of(&error))?;
    Ok(ResetResponse {
        counters: forgotten.counters,
        in_flight: forgotten.in_flight,
    })
}
