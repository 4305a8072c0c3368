//! `ShouldRateLimit` and its batch in encoded messages, read in place and written without making
//! messages of them.

mod numbers;
mod read;
mod write;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use prost::Message;
use tonic::{Response, Status};

pub(in crate::api) use self::{
    numbers::{StatusNumbers, code},
    write::nested,
};
pub use self::{
    read::{read, requests_of},
    write::write,
};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;

/// A rate limit service that is asked in encoded messages.
pub trait Asked: RateLimitService {
    /// Whether `ShouldRateLimitBatch` is answered here. If not, it is left to the services beside
    /// this one.
    const BATCHES: bool = false;

    /// Answers `ShouldRateLimit`. Unless a service knows better, it is asked as any other service
    /// of gRPC: prost reads the message, and the answer is awaited.
    fn ask(self: &Arc<Self>, request: tonic::Request<Vec<u8>>) -> Answer {
        let service = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            let answer = service.should_rate_limit(decoded(request)?).await?;
            Ok(answer.map(|message| Encoded(message.encode_to_vec())))
        }))
    }

    /// Answers `ShouldRateLimitBatch`, if [`Asked::BATCHES`].
    fn ask_batch(self: &Arc<Self>, _request: tonic::Request<Vec<u8>>) -> Answer {
        let status = Status::unimplemented("ShouldRateLimitBatch is not served");
        Answer::Now(Some(Err(status)))
    }
}

/// A message that is encoded already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded(pub Vec<u8>);

/// An answer that is there, or has to be awaited. Nearly every one is there, and a box for it would
/// be one more allocation.
pub enum Answer {
    /// It is there; taken by the first poll.
    Now(Option<Result<Response<Encoded>, Status>>),
    /// It is not.
    Later(Pin<Box<dyn Future<Output = Result<Response<Encoded>, Status>> + Send>>),
}

impl Future for Answer {
    type Output = Result<Response<Encoded>, Status>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Now(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            Self::Later(answer) => answer.as_mut().poll(cx),
        }
    }
}

/// The request as prost reads it.
///
/// # Errors
/// `INTERNAL` for what is no such message, as tonic says.
pub fn decoded<M: Message + Default>(
    request: tonic::Request<Vec<u8>>,
) -> Result<tonic::Request<M>, Status> {
    let (metadata, extensions, bytes) = request.into_parts();
    let message =
        M::decode(bytes.as_slice()).map_err(|error| Status::internal(error.to_string()))?;
    Ok(tonic::Request::from_parts(metadata, extensions, message))
}
