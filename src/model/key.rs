//! The name under which a counter lives: a keyed hash.
//!
//! A counter key is a 128-bit SipHash-1-3 of length-prefixed texts. The prefix makes it
//! unambiguous: no two different lists of texts hash the same bytes. The key makes it
//! unpredictable: nobody who chooses descriptor values can aim two callers at one counter. The
//! memory store draws a random hash key per process; a shared store needs a configured one.
//!
//! The limits of one rule are asked for together, so their counters are [siblings](CounterKey::sibling):
//! one hash names all of them, and a store finds them side by side.

use std::{
    fmt,
    hash::{BuildHasherDefault, Hasher},
};

use crate::model::sip::Sip;

/// Name of one counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CounterKey {
    // Two words instead of one of 128 bits, whose alignment would pad everything around it.
    high: u64,
    low: u64,
}

impl CounterKey {
    /// A key with these bits; for tests and for stores that print and read keys.
    pub const fn from_bits(bits: u128) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
        let low = bits as u64;
        let high = (bits >> 64) as u64;
        Self { high, low }
    }

    /// All bits.
    pub const fn bits(self) -> u128 {
        ((self.high as u128) << 64) | self.low as u128
    }

    /// The key of the limit with this discriminator among those that count under this name; 0 is
    /// the name itself. Siblings differ in bits that tell counters apart and agree in those that
    /// say where one belongs: the uppermost [`HOME_BITS`], the lower half's upper 32, the lowest 8.
    #[must_use]
    pub const fn sibling(self, discriminator: u64) -> Self {
        const HIGH: u64 = u64::MAX >> HOME_BITS;
        const LOW: u64 = 0xffff_ff00;
        Self {
            high: self.high ^ (discriminator & HIGH),
            low: self.low ^ (discriminator & LOW),
        }
    }
}

/// Uppermost bits that siblings have in common.
pub const HOME_BITS: u32 = 15;

/// For tables by counter key: a key is a hash already and is not hashed again.
pub type ByKey = BuildHasherDefault<KeyBits>;

/// The latest word of a key is its hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyBits(u64);

impl Hasher for KeyBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    /// A key never comes in bytes.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

/// The key of a [`KeyHasher`]. Not shown: whoever knows it can aim two callers at one counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySecret([u8; 16]);

impl KeySecret {
    /// These bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Fresh random bytes.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The bytes, to be kept where only the owner reads.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// The hasher under this secret.
    pub fn hasher(self) -> KeyHasher {
        KeyHasher::new(self.0)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

/// Makes counter keys. Cheap to copy: a prefix that many keys share is hashed once.
#[derive(Clone, Copy)]
pub struct KeyHasher(Sip);

impl KeyHasher {
    /// A hasher under a secret of 16 bytes.
    pub const fn new(secret: [u8; 16]) -> Self {
        Self(Sip::new(secret))
    }

    /// A hasher under a fresh random secret.
    pub fn random() -> Self {
        Self::new(rand::random())
    }

    /// Adds one text.
    #[inline]
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.bytes(text.as_bytes());
    }

    /// Adds one number.
    #[inline]
    pub fn number(&mut self, number: u64) {
        self.0.word(number);
    }

    /// The key of all that was added.
    #[inline]
    pub fn finish(&self) -> CounterKey {
        let [high, low] = self.0.finish();
        CounterKey { high, low }
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(texts: &[&str]) -> CounterKey {
        let mut hasher = KeyHasher::new([7; 16]);
        for text in texts {
            hasher.text(text);
        }
        hasher.finish()
    }

    #[test]
    fn different_lists_of_texts_have_different_keys() {
        assert_ne!(key(&["a", "x_b_y"]), key(&["a", "x", "b", "y"]));
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_ne!(key(&["a", ""]), key(&["a"]));
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
    }

    #[test]
    fn keys_are_what_state_files_and_shared_stores_know() {
        let mut hasher = KeyHasher::new([7; 16]);
        for text in ["edge", "tenant", "acme", "user", "somebody"] {
            hasher.text(text);
        }
        hasher.number(3);
        assert_eq!(
            hasher.finish().bits(),
            0x88d6_120d_4132_ac7f_2204_415d_4a75_73c9
        );
    }

    #[test]
    fn siblings_differ_but_live_together() {
        let name = key(&["a", "b"]);
        assert_eq!(name.sibling(0), name);
        let (one, two) = (name.sibling(u64::MAX), name.sibling(1));
        assert_ne!(one, two);
        assert_ne!(one, name);
        let common = |key: CounterKey| (key.high >> 49, key.low >> 32, key.low & 0xff);
        assert_eq!(common(one), common(name));
        assert_eq!(one.sibling(u64::MAX), name);
    }

    #[test]
    fn the_secret_changes_every_key() {
        let mut one = KeyHasher::new([1; 16]);
        let mut two = KeyHasher::new([2; 16]);
        one.text("a");
        two.text("a");
        assert_ne!(one.finish(), two.finish());
    }
}
