//! A `RateLimitRequest` read in place: its texts are borrowed from the bytes that arrived.
//!
//! Only what nearly every request consists of is read here: domain, descriptors of keys and
//! values, and the cost of the request. Whatever else there is (a limit that comes along, a
//! descriptor's own cost, a field that we do not know, something that is wrong or beyond a bound)
//! makes [`read`] say nothing at all, and prost reads the message from the start: there is one
//! place that knows all of it and one that words what is wrong.

use std::str;

use crate::{
    api::bounds::Bounds,
    model::request::{Entry, Request},
};

// Tags of the protocol: number of the field × 8 + 2 for what has a length, + 0 for a number.
const DOMAIN: u8 = 0x0a;
const DESCRIPTOR: u8 = 0x12;
const HITS_ADDEND: u8 = 0x18;
const ENTRY: u8 = 0x0a;
const KEY: u8 = 0x0a;
const VALUE: u8 = 0x12;
// Of a batch.
const REQUEST: u8 = 0x0a;

/// Reads an encoded `RateLimitRequest` into `request`, whatever that was before. None if it has to
/// be read in full: then the request means nothing.
pub fn read<'m>(message: &'m [u8], bounds: Bounds, request: &mut Request<'m>) -> Option<()> {
    // Plain messages are nearly always plain text, lengths and tags too: checked once as a whole,
    // their texts need not be checked one by one.
    let as_text = str::from_utf8(message).ok();
    as_text
        .and_then(|text| read_from(text, bounds, request))
        .or_else(|| read_from(message, bounds, request))
}

/// The encoded requests of an encoded `ShouldRateLimitBatchRequest`; none of it if there is anything
/// else, or more than `most`.
pub fn requests_of(message: &[u8], most: usize) -> Option<Vec<&[u8]>> {
    /// Few requests are shorter.
    const SHORT: usize = 32;
    let mut requests = Vec::with_capacity(most.min(message.len() / SHORT));
    let mut rest = message;
    while let Some(tag) = rest.byte() {
        if tag != REQUEST || requests.len() == most {
            return None;
        }
        requests.push(rest.piece()?);
    }
    Some(requests)
}

fn read_from<'m, S: Source<'m>>(
    mut message: S,
    bounds: Bounds,
    request: &mut Request<'m>,
) -> Option<()> {
    request.clear();
    while let Some(tag) = message.byte() {
        match tag {
            DOMAIN => request.domain = short(message.piece()?, bounds.max_key)?,
            DESCRIPTOR if request.descriptors.len() < bounds.max_descriptors => {
                descriptor(message.piece()?, bounds, request)?;
            }
            HITS_ADDEND => request.hits_addend = u32::try_from(message.number()?).ok()?,
            _ => return None,
        }
    }
    message.is_empty().then_some(())
}

fn descriptor<'m, S: Source<'m>>(
    mut bytes: S,
    bounds: Bounds,
    request: &mut Request<'m>,
) -> Option<()> {
    request.add([]);
    let mut left = bounds.max_entries;
    while let Some(tag) = bytes.byte() {
        left = left.checked_sub(1)?;
        if tag != ENTRY {
            return None;
        }
        request.add_entry(entry(bytes.piece()?, bounds)?);
    }
    bytes.is_empty().then_some(())
}

fn entry<'m, S: Source<'m>>(mut bytes: S, bounds: Bounds) -> Option<Entry<'m>> {
    let (mut key, mut value) = ("", "");
    while let Some(tag) = bytes.byte() {
        match tag {
            KEY => key = short(bytes.piece()?, bounds.max_key)?,
            VALUE => value = short(bytes.piece()?, bounds.max_value)?,
            _ => return None,
        }
    }
    bytes.is_empty().then_some(Entry { key, value })
}

fn short<'m>(piece: impl Source<'m>, most: usize) -> Option<&'m str> {
    piece.text().filter(|text| text.len() <= most)
}

/// What a message is read from, front to back.
trait Source<'m>: Sized {
    /// The next byte; none at the end, or where a text cannot be cut.
    fn byte(&mut self) -> Option<u8>;

    /// The next bytes, so many.
    fn cut(&mut self, length: usize) -> Option<Self>;

    /// All that is left as a text.
    fn text(self) -> Option<&'m str>;

    fn is_empty(&self) -> bool;

    /// What has a length: the length, and so many bytes.
    #[inline]
    fn piece(&mut self) -> Option<Self> {
        let length = usize::try_from(self.number()?).ok()?;
        self.cut(length)
    }

    /// A number below 2²⁸: seven bits a byte, the lowest first. Nearly all are one byte.
    #[inline]
    fn number(&mut self) -> Option<u64> {
        match self.byte()? {
            byte @ 0..0x80 => Some(byte.into()),
            byte => self.long_number(byte),
        }
    }

    /// The number that begins with `first`, of which there is more.
    fn long_number(&mut self, first: u8) -> Option<u64> {
        let mut number = u64::from(first & 0x7f);
        for shift in [7, 14, 21] {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

impl<'m> Source<'m> for &'m [u8] {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.split_first()?;
        *self = rest;
        Some(*first)
    }

    #[inline]
    fn cut(&mut self, length: usize) -> Option<Self> {
        let (piece, rest) = self.split_at_checked(length)?;
        *self = rest;
        Some(piece)
    }

    #[inline]
    fn text(self) -> Option<&'m str> {
        str::from_utf8(self).ok()
    }

    fn is_empty(&self) -> bool {
        <[u8]>::is_empty(self)
    }
}

/// Bytes that are known to be a text. Some that are no plain message can be one, too: they are cut
/// where a text can be, or not at all.
impl<'m> Source<'m> for &'m str {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let first = *self.as_bytes().first()?;
        *self = self.get(1..)?;
        Some(first)
    }

    #[inline]
    fn cut(&mut self, length: usize) -> Option<Self> {
        let (piece, rest) = self.split_at_checked(length)?;
        *self = rest;
        Some(piece)
    }

    #[inline]
    fn text(self) -> Option<&'m str> {
        Some(self)
    }

    fn is_empty(&self) -> bool {
        str::is_empty(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

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
        let mut request = Request::default();
        if read(message, BOUNDS, &mut request).is_none() {
            return false;
        }
        let full = RateLimitRequest::decode(message).expect("prost reads what we read");
        let full = envoy_rls::request(&full, BOUNDS).expect("and it is within the bounds");
        assert_eq!(format!("{request:?}"), format!("{full:?}"));
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
