//! What a call asks.

use std::{fmt::Write as _, str::FromStr};

use crate::{
    model::notation::{self, NotationError},
    proto::{
        envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor, rate_limit_descriptor::Entry,
            },
            service::ratelimit::v3::RateLimitRequest,
        },
        porteiro::v1::{AcquireRequest, Item},
    },
};
use bytes::{BufMut as _, Bytes, BytesMut};

/// What stands in a value for the key of the call.
const KEY: &str = "{key}";

/// A request whose values may hold the key of the call.
#[derive(Clone, Debug)]
pub struct Template {
    message: Message,
    holes: Vec<Hole>,
    buffer: BytesMut,
}

/// A message that is encoded again and again with other values.
#[derive(Clone, Debug)]
enum Message {
    RateLimit(RateLimitRequest),
    Acquire(AcquireRequest),
}

impl Message {
    fn entry(&mut self, hole: &Hole) -> Option<&mut Entry> {
        let descriptor = match self {
            Self::RateLimit(request) => request.descriptors.get_mut(hole.descriptor),
            Self::Acquire(request) => {
                let item = request.items.get_mut(hole.descriptor)?;
                item.descriptor.as_mut()
            }
        };
        descriptor?.entries.get_mut(hole.entry)
    }
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
    /// `ShouldRateLimit` for these descriptors. `hits_addend` 0 means 1.
    pub fn should_rate_limit(domain: &str, descriptors: Descriptors, hits_addend: u32) -> Self {
        let (descriptors, holes) = wire(descriptors);
        Self {
            message: Message::RateLimit(RateLimitRequest {
                domain: domain.to_owned(),
                descriptors,
                hits_addend,
            }),
            holes,
            buffer: BytesMut::new(),
        }
    }

    /// `Acquire` for one permit, and one unit, of every descriptor. Each call is a new request.
    pub fn acquire(domain: &str, descriptors: Descriptors) -> Self {
        let (descriptors, holes) = wire(descriptors);
        let item = |descriptor| Item {
            descriptor: Some(descriptor),
            ..Item::default()
        };
        Self {
            message: Message::Acquire(AcquireRequest {
                domain: domain.to_owned(),
                items: descriptors.into_iter().map(item).collect(),
                ..AcquireRequest::default()
            }),
            holes,
            buffer: BytesMut::new(),
        }
    }

    /// The method that is called with it, as HTTP knows it.
    pub(super) fn method(&self) -> &'static str {
        match self.message {
            Message::RateLimit(_) => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            Message::Acquire(_) => "/porteiro.v1.LimiterService/Acquire",
        }
    }

    /// Whether answers may hold leases.
    pub(super) fn takes_leases(&self) -> bool {
        matches!(self.message, Message::Acquire(_))
    }

    /// The request for a key as a gRPC message.
    pub(super) fn encode(&mut self, key: u64) -> Bytes {
        for hole in &self.holes {
            if let Some(entry) = self.message.entry(hole) {
                hole.fill(key, &mut entry.value);
            }
        }
        match &self.message {
            Message::RateLimit(request) => frame(request, &mut self.buffer),
            Message::Acquire(request) => frame(request, &mut self.buffer),
        }
    }
}

impl Hole {
    fn fill(&self, key: u64, value: &mut String) {
        value.clear();
        for (index, text) in self.around.iter().enumerate() {
            if index > 0 {
                // Writing to a string does not fail.
                let _ = write!(value, "{key}");
            }
            value.push_str(text);
        }
    }
}

/// Descriptors as they are sent, and where the key goes.
fn wire(descriptors: Descriptors) -> (Vec<RateLimitDescriptor>, Vec<Hole>) {
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
                .map(|(key, value)| Entry { key, value })
                .collect(),
            ..RateLimitDescriptor::default()
        });
    }
    (wire, holes)
}

/// A gRPC message: a byte that says it is not compressed, four of length, and the protobuf.
pub(super) fn frame(message: &impl prost::Message, buffer: &mut BytesMut) -> Bytes {
    let length = message.encoded_len();
    buffer.reserve(5 + length);
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // It was given the room.
    let _ = message.encode(buffer);
    buffer.split().freeze()
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

    /// What a gRPC message holds.
    fn content<M: prost::Message + Default>(bytes: &[u8]) -> M {
        assert_eq!(bytes[..4], [0; 4]);
        assert_eq!(usize::from(bytes[4]), bytes.len() - 5);
        M::decode(&bytes[5..]).unwrap()
    }

    fn values(descriptor: &RateLimitDescriptor) -> Vec<&str> {
        let entries = descriptor.entries.iter();
        entries.map(|entry| entry.value.as_str()).collect()
    }

    const TEXT: &str = "tenant=a,user=u{key}-{key};path=/{key};plain=";

    #[test]
    fn the_key_is_put_where_it_belongs() {
        let mut template = Template::should_rate_limit("edge", TEXT.parse().unwrap(), 3);
        for key in [7, 12_345, 8] {
            let request: RateLimitRequest = content(&template.encode(key));
            assert_eq!((request.domain.as_str(), request.hits_addend), ("edge", 3));
            let user = format!("u{key}-{key}");
            let path = format!("/{key}");
            let expected = [vec!["a", user.as_str()], vec![path.as_str()], vec![""]];
            let seen: Vec<_> = request.descriptors.iter().map(values).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn an_acquire_has_an_item_for_each_descriptor() {
        let mut template = Template::acquire("edge", TEXT.parse().unwrap());
        let request: AcquireRequest = content(&template.encode(9));
        assert_eq!(request.domain, "edge");
        let descriptors = request
            .items
            .iter()
            .map(|item| item.descriptor.as_ref().unwrap());
        let seen: Vec<_> = descriptors.map(values).collect();
        assert_eq!(seen, [vec!["a", "u9-9"], vec!["/9"], vec![""]]);
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
