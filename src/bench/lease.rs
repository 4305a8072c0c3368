//! Giving leases back.

use bytes::BytesMut;

use crate::{
    bench::{
        call::{Failure, Head},
        template::frame,
        wire::Wire,
    },
    proto::porteiro::v1::{
        LeaseEnd, ReleaseRequest, ReleaseResponse, ReleaseResult, lease_end::Outcome,
        release_result::Status,
    },
};

/// The method.
pub(super) const RELEASE: &str = "/porteiro.v1.LimiterService/Release";

/// Gives one lease back after work that went well.
pub(super) async fn release(wire: &Wire, head: &Head, lease_id: String) -> Result<(), Failure> {
    let request = ReleaseRequest {
        leases: vec![LeaseEnd {
            lease_id,
            outcome: Outcome::Success.into(),
            ..LeaseEnd::default()
        }],
        ..ReleaseRequest::default()
    };
    let message = frame(&request, &mut BytesMut::new());
    let answer: ReleaseResponse = wire.call(head, message).await?;
    let released = answer.results.iter().map(ReleaseResult::status);
    if released.eq([Status::Released]) {
        Ok(())
    } else {
        Err(Failure::NotReleased)
    }
}
