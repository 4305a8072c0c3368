//! What a call asks.

use std::{fmt::Write as _, str::FromStr};

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use crate::{
    model::notation::{self, NotationError},
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::RateLimitRequest,
    },
};

/// What stands in a value for the key of the call.
const KEY: &str = "{key}";

/// A request whose values may hold the key of the call.
#[derive(Clone, Debug)]
pub struct Template {
    message: RateLimitRequest,
    holes: Vec<Hole>,
    buffer: BytesMut,
}

/// A value that holds the key.
#[derive(Clone, Debug)]
struct Hole {
    descriptor: usize,
    entry: usize,
    /// The texts around the key.
    around: Vec<String>,
}

impl Template {
    /// A request of these descriptors. `hits_addend` 0 means 1.
    pub fn new(domain: &str, descriptors: Descriptors, hits_addend: u32) -> Self {
        let mut holes = Vec::new();
        let mut wire = Vec::with_capacity(descriptors.0.len());
        for (descriptor, entries) in descriptors.0.into_iter().enumerate() {
            let with_hole = |(entry, (_, value)): (usize, &(String, String))| {
                value.contains(KEY).then(|| Hole {
                    descriptor,
                    entry,
                    around: value.split(KEY).map(str::to_owned).collect(),
                })
            };
            holes.extend(entries.iter().enumerate().filter_map(with_hole));
            wire.push(RateLimitDescriptor {
                entries: entries
                    .into_iter()
                    .map(|(key, value)| rate_limit_descriptor::Entry { key, value })
                    .collect(),
                ..RateLimitDescriptor::default()
            });
        }
        Self {
            message: RateLimitRequest {
                domain: domain.to_owned(),
                descriptors: wire,
                hits_addend,
            },
            holes,
            buffer: BytesMut::new(),
        }
    }

    /// The request for a key.
    pub fn message(&mut self, key: u64) -> &RateLimitRequest {
        for hole in &self.holes {
            let Some(entry) = self
                .message
                .descriptors
                .get_mut(hole.descriptor)
                .and_then(|descriptor| descriptor.entries.get_mut(hole.entry))
            else {
                continue;
            };
            entry.value.clear();
            for (index, text) in hole.around.iter().enumerate() {
                if index > 0 {
                    // Writing to a string does not fail.
                    let _ = write!(entry.value, "{key}");
                }
                entry.value.push_str(text);
            }
        }
        &self.message
    }

    /// The request for a key as a gRPC message: a byte that says it is not compressed, four of
    /// length, and the protobuf.
    pub fn encode(&mut self, key: u64) -> Bytes {
        self.message(key);
        let length = self.message.encoded_len();
        self.buffer.reserve(5 + length);
        self.buffer.put_u8(0);
        self.buffer
            .put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        // It was given the room.
        let _ = self.message.encode(&mut self.buffer);
        self.buffer.split().freeze()
    }
}

/// Descriptors as lists of keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors(pub Vec<Vec<(String, String)>>);

impl FromStr for Descriptors {
    type Err = NotationError;

    /// In the notation of [`notation`]: `key=value,key=value;key=value`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut descriptors = vec![Vec::new()];
        for piece in notation::entries(text) {
            let piece = piece?;
            if let Some(last) = descriptors.last_mut() {
                last.push((piece.key.into_owned(), piece.value.into_owned()));
            }
            if piece.last {
                descriptors.push(Vec::new());
            }
        }
        // The one that nothing followed.
        descriptors.pop();
        Ok(Self(descriptors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(descriptors: &str) -> Template {
        Template::new("edge", descriptors.parse().unwrap(), 3)
    }

    #[test]
    fn the_key_is_put_where_it_belongs() {
        let mut template = template("tenant=a,user=u{key}-{key};path=/{key};plain=");
        for key in [7, 12_345, 8] {
            let message = template.message(key).clone();
            let values: Vec<Vec<_>> = message
                .descriptors
                .iter()
                .map(|descriptor| descriptor.entries.iter().map(|e| e.value.clone()).collect())
                .collect();
            let expected = [
                vec!["a".to_owned(), format!("u{key}-{key}")],
                vec![format!("/{key}")],
                vec![String::new()],
            ];
            assert_eq!(values, expected);
            let bytes = template.encode(key);
            assert_eq!(
                bytes[..5],
                [0, 0, 0, 0, u8::try_from(bytes.len() - 5).unwrap()]
            );
            assert_eq!(RateLimitRequest::decode(&bytes[5..]).unwrap(), message);
        }
    }

    #[test]
    fn without_a_place_for_it_there_is_no_key() {
        let mut template = template("tenant=a");
        assert_eq!(template.encode(1), template.encode(2));
    }

    #[test]
    fn descriptors_are_read_in_our_notation() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let two = vec![vec![pair("a", "b=c"), pair("d", "")], vec![pair("e", "f;")]];
        assert_eq!("a=b=c,d=;e=f\\;".parse(), Ok(Descriptors(two)));
        assert_eq!("".parse(), Ok(Descriptors::default()));
        assert!("a".parse::<Descriptors>().is_err());
    }
}
