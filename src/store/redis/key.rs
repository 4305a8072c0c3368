//! Names of counters in Redis: `{prefix:domain}:` and 32 hexadecimal digits.
//!
//! What stands between the braces is the hash tag: in a cluster all counters of a domain live in
//! one slot, so that a request is decided as one. A domain that is spread over slots has several
//! tags, `{prefix:domain:number}` (see [`super::spread`]).

use std::sync::Arc;

use crate::model::key::CounterKey;

/// What decides the slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HashTag {
    /// With braces and the colon behind.
    text: Arc<str>,
    /// The cluster's slot.
    pub(super) slot: u16,
}

impl HashTag {
    /// What the names of the domain's keys begin with.
    pub(super) fn home(&self) -> &str {
        &self.text
    }

    /// The tag of a domain.
    pub(super) fn new(prefix: &str, domain: &str) -> Self {
        let mut text = String::from("{");
        push_plain(&mut text, prefix);
        text.push(':');
        push_plain(&mut text, domain);
        let slot = slot(text.trim_start_matches('{').as_bytes());
        text.push_str("}:");
        Self {
            text: Arc::from(text),
            slot,
        }
    }
}

/// Braces would end the tag, and control characters and blanks would break the lines of
/// `redis-cli`: they and `%` are written as `%` and two digits.
fn push_plain(text: &mut String, part: &str) {
    for byte in part.bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}' | b'%') {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends the name of a counter.
pub(super) fn write(names: &mut Vec<u8>, tag: &HashTag, key: CounterKey) {
    names.extend_from_slice(tag.text.as_bytes());
    for byte in key.bits().to_be_bytes() {
        names.push(DIGITS[usize::from(byte >> 4)]);
        names.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// CRC-16/XMODEM modulo 16384, as the cluster specification has it.
fn slot(tag: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            };
        }
    }
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_is_the_clusters() {
        // The check value of the cluster specification.
        assert_eq!(slot(b"123456789"), 0x31C3);
    }

    #[test]
    fn names_are_plain_whatever_a_domain_is_called() {
        let tag = HashTag::new("p", "a}b\n%é");
        let mut name = Vec::new();
        write(&mut name, &tag, CounterKey::from_bits(0xAB));
        let name = String::from_utf8(name).unwrap();
        assert_eq!(name, format!("{{p:a%7db%0a%25%c3%a9}}:{:032x}", 0xAB));
    }
}
