//! `ShouldRateLimit` and its batch in encoded messages, and a `RateLimitRequest` read in place: its
//! texts are borrowed from the bytes that arrived.
//!
//! Only what nearly every request consists of is read here: domain, descriptors of keys and
//! values, and the cost of the request. Whatever else there is (a limit that comes along, a
//! descriptor's own cost, a field that we do not know, something that is wrong or beyond a bound)
//! makes [`read`] say nothing at all, and prost reads the message from the start: there is one
//! place that knows all of it and one that words what is wrong.

use std::{
    iter::from_fn,
    pin::Pin,
    str,
    sync::Arc,
    task::{Context, Poll},
};

use prost::Message;
use tonic::{Response, Status};

use crate::{
    api::bounds::Bounds,
    model::request::{Entry, Request},
    proto::envoy::service::ratelimit::v3::{
        RateLimitResponse, rate_limit_service_server::RateLimitService,
    },
};

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
            service.should_rate_limit(decoded(request)?).await
        }))
    }

    /// Answers `ShouldRateLimitBatch`, if [`Asked::BATCHES`].
    fn ask_batch(self: &Arc<Self>, _request: tonic::Request<Vec<u8>>) -> Answer<Encoded> {
        let status = Status::unimplemented("ShouldRateLimitBatch is not served");
        Answer::Now(Some(Err(status)))
    }
}

/// A message that is encoded already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded(pub Vec<u8>);

/// An answer that is there, or has to be awaited. Nearly every one is there, and a box for it would
/// be one more allocation.
pub enum Answer<M = RateLimitResponse> {
    /// It is there; taken by the first poll.
    Now(Option<Result<Response<M>, Status>>),
    /// It is not.
    Later(Pin<Box<dyn Future<Output = Result<Response<M>, Status>> + Send>>),
}

impl<M: Unpin> Future for Answer<M> {
    type Output = Result<Response<M>, Status>;

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

// Tags of the protocol: number of the field × 8 + 2 for what has a length, + 0 for a number.
const DOMAIN: u8 = 0x0a;
const DESCRIPTOR: u8 = 0x12;
const HITS_ADDEND: u8 = 0x18;
const ENTRY: u8 = 0x0a;
const KEY: u8 = 0x0a;
const VALUE: u8 = 0x12;

/// The request in an encoded `RateLimitRequest`, or nothing if it has to be read in full.
pub fn read(message: &[u8], bounds: Bounds) -> Option<Request<'_>> {
    let mut request = Request::default();
    let mut rest = message;
    while let Some(tag) = take_byte(&mut rest) {
        match tag {
            DOMAIN => request.domain = text(&mut rest, bounds.max_key)?,
            DESCRIPTOR if request.descriptors.len() < bounds.max_descriptors => {
                add(&mut request, piece(&mut rest)?, bounds)?;
            }
            HITS_ADDEND => request.hits_addend = u32::try_from(number(&mut rest)?).ok()?,
            _ => return None,
        }
    }
    Some(request)
}

// Of a batch.
const REQUEST: u8 = 0x0a;

/// The requests in an encoded `ShouldRateLimitBatchRequest`, or nothing if one of them has to be
/// read in full or there are more than `most`.
pub fn read_batch(message: &[u8], most: usize, bounds: Bounds) -> Option<Vec<Request<'_>>> {
    /// Few requests are shorter.
    const SHORT: usize = 32;
    let mut requests = Vec::with_capacity(most.min(message.len() / SHORT));
    let mut rest = message;
    while let Some(tag) = take_byte(&mut rest) {
        if tag != REQUEST || requests.len() == most {
            return None;
        }
        requests.push(read(piece(&mut rest)?, bounds)?);
    }
    Some(requests)
}

/// Adds the descriptor that these bytes are.
fn add<'m>(request: &mut Request<'m>, mut bytes: &'m [u8], bounds: Bounds) -> Option<()> {
    let mut left = bounds.max_entries;
    let mut odd = false;
    let entries = from_fn(|| {
        let tag = take_byte(&mut bytes)?;
        let entry = match tag {
            ENTRY if left > 0 => piece(&mut bytes).and_then(|bytes| entry(bytes, bounds)),
            _ => None,
        };
        left = left.saturating_sub(1);
        odd = entry.is_none();
        entry
    });
    request.add(entries);
    (!odd).then_some(())
}

fn entry(mut bytes: &[u8], bounds: Bounds) -> Option<Entry<'_>> {
    let (mut key, mut value) = ("", "");
    while let Some(tag) = take_byte(&mut bytes) {
        match tag {
            KEY => key = text(&mut bytes, bounds.max_key)?,
            VALUE => value = text(&mut bytes, bounds.max_value)?,
            _ => return None,
        }
    }
    Some(Entry { key, value })
}

fn text<'m>(bytes: &mut &'m [u8], most: usize) -> Option<&'m str> {
    let text = piece(bytes)?;
    str::from_utf8(text).ok().filter(|text| text.len() <= most)
}

/// What has a length: the length, and so many bytes.
fn piece<'m>(bytes: &mut &'m [u8]) -> Option<&'m [u8]> {
    let length = usize::try_from(number(bytes)?).ok()?;
    let (piece, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(piece)
}

/// A number below 2²⁸: seven bits a byte, the lowest first.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let byte = take_byte(bytes)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        api::envoy_rls,
        proto::envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor,
                rate_limit_descriptor::{Entry as WireEntry, RateLimitOverride},
            },
            service::ratelimit::v3::RateLimitRequest,
        },
    };

    const BOUNDS: Bounds = Bounds {
        max_message: 64 * 1024,
        max_descriptors: 3,
        max_entries: 3,
        max_key: 5,
        max_value: 6,
    };

    /// What the reader says, if it says anything, is what prost says; returns whether it did.
    fn agree(message: &[u8]) -> bool {
        let Some(read) = read(message, BOUNDS) else {
            return false;
        };
        let full = RateLimitRequest::decode(message).expect("prost reads what we read");
        let full = envoy_rls::request(&full, BOUNDS).expect("and it is within the bounds");
        assert_eq!(format!("{read:?}"), format!("{full:?}"));
        true
    }

    fn plain() -> impl Strategy<Value = RateLimitRequest> {
        let entry =
            ("[a-zä]{0,5}", "[a-z€]{0,6}").prop_map(|(key, value)| WireEntry { key, value });
        let descriptor =
            prop::collection::vec(entry, 0..5).prop_map(|entries| RateLimitDescriptor {
                entries,
                ..RateLimitDescriptor::default()
            });
        let descriptors = prop::collection::vec(descriptor, 0..5);
        let hits = prop_oneof![Just(0), 0..200_u32, any::<u32>()];
        ("[a-z]{0,6}", descriptors, hits).prop_map(|(domain, descriptors, hits_addend)| {
            RateLimitRequest {
                domain,
                descriptors,
                hits_addend,
            }
        })
    }

    /// Bytes as of a message, with tags, lengths and texts that are right more often than not.
    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let tag = prop::sample::select(vec![DOMAIN, DESCRIPTOR, HITS_ADDEND, 0x1a, 0x00, 0x0d]);
        let inner = prop::collection::vec(
            prop_oneof![
                Just(vec![KEY, 1, b'k']),
                Just(vec![VALUE, 2, b'v', b'w']),
                Just(vec![ENTRY, 3, KEY, 1, b'k']),
                Just(vec![0x20, 1]),
                Just(vec![KEY, 1, 0xff]),
                prop::collection::vec(any::<u8>(), 0..3),
            ],
            0..4,
        );
        let field = (tag, inner, any::<bool>()).prop_map(|(tag, inner, off)| {
            let inner = inner.concat();
            let length = inner.len() + usize::from(off);
            let mut bytes = vec![tag, u8::try_from(length).unwrap()];
            bytes.extend(inner);
            bytes
        });
        prop::collection::vec(field, 0..5).prop_map(|fields| fields.concat())
    }

    proptest! {
        #[test]
        fn plain_messages_are_read_as_prost_reads_them(message in plain()) {
            let within = envoy_rls::request(&message, BOUNDS).is_ok();
            let small = message.hits_addend < 1 << 28;
            prop_assert_eq!(agree(&message.encode_to_vec()), within && small);
        }

        #[test]
        fn no_bytes_are_read_differently(bytes in prop_oneof![
            pieces(),
            prop::collection::vec(any::<u8>(), 0..40),
        ]) {
            agree(&bytes);
        }
    }

    #[test]
    fn what_is_rare_is_left_to_prost() {
        let with = |change: fn(&mut RateLimitDescriptor)| {
            let mut descriptor = RateLimitDescriptor::default();
            change(&mut descriptor);
            let request = RateLimitRequest {
                descriptors: vec![descriptor],
                ..RateLimitRequest::default()
            };
            agree(&request.encode_to_vec())
        };
        assert!(with(|_| {}));
        assert!(!with(|d| d.hits_addend = Some(0)));
        assert!(!with(|d| d.is_negative_hits = true));
        assert!(!with(|d| d.limit = Some(RateLimitOverride::default())));
        // The later of two domains counts, an unknown field and a cut text are not ours.
        assert!(agree(&[DOMAIN, 1, b'a', DOMAIN, 1, b'b']));
        assert!(!agree(&[0x22, 0]));
        assert!(!agree(&[DOMAIN, 2, b'a']));
        assert!(!agree(&[DOMAIN, 1, 0xff]));
        assert!(!agree(&[HITS_ADDEND, 0xff, 0xff, 0xff, 0xff, 0x01]));
        assert!(agree(&[]));
    }
}
