//! How the messages of `ShouldRateLimit` come out of and go into gRPC's frames.

use bytes::Buf as _;
use prost::Message as _;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;

/// Requests as the bytes that arrived, answers by prost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw;

/// Requests and answers are a few hundred bytes; tonic sets 8 KiB aside, twice for every call in
/// flight. Measured with the no-op, 256 calls in flight: 3.86 µs of CPU a call with that, 3.68 with
/// this.
const SMALL: usize = 512;
/// tonic's own; nothing here streams.
const YIELD_THRESHOLD: usize = 32 * 1024;

impl Codec for Raw {
    type Encode = RateLimitResponse;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(SMALL, YIELD_THRESHOLD)
    }
}

impl Encoder for Raw {
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(
        &mut self,
        answer: RateLimitResponse,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        answer
            .encode(buffer)
            .map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(SMALL, YIELD_THRESHOLD)
    }
}
