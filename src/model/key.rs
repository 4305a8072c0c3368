//! The name under which a counter lives: a keyed hash.
//!
//! A counter key is a 128-bit SipHash-1-3 of length-prefixed texts. The prefix makes it
//! unambiguous: no two different lists of texts hash the same bytes. The key makes it
//! unpredictable: nobody who chooses descriptor values can aim two callers at one counter. The
//! memory store draws a random hash key per process; a shared store needs a configured one.

use std::{
    fmt,
    hash::{BuildHasherDefault, Hasher},
};

use siphasher::sip128::{Hasher128, SipHasher13};

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
}

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

/// Makes counter keys. Cheap to clone: a prefix that many keys share is hashed once.
#[derive(Clone, Debug)]
pub struct KeyHasher(SipHasher13);

impl KeyHasher {
    /// A hasher under a secret of 16 bytes.
    pub fn new(secret: [u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(&secret))
    }

    /// A hasher under a fresh random secret.
    pub fn random() -> Self {
        Self::new(rand::random())
    }

    /// Adds one text.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.write(text.as_bytes());
    }

    /// Adds one number.
    pub fn number(&mut self, number: u64) {
        self.0.write(&number.to_le_bytes());
    }

    /// The key of all that was added.
    pub fn finish(&self) -> CounterKey {
        let hash = self.0.finish128();
        CounterKey {
            high: hash.h1,
            low: hash.h2,
        }
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
    fn the_secret_changes_every_key() {
        let mut one = KeyHasher::new([1; 16]);
        let mut two = KeyHasher::new([2; 16]);
        one.text("a");
        two.text("a");
        assert_ne!(one.finish(), two.finish());
    }
}
