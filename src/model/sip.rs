//! SipHash-1-3 with a result of 128 bits, fed with whole words.
//!
//! Equal bit for bit to [`siphasher::sip128::SipHasher13`], which the tests hold beside it. Here for
//! its speed: a counter key is made of few short pieces, each of which costs that hasher a call and
//! several branches, and here some shifts. Source: Aumasson and Bernstein, "`SipHash`: a
//! fast short-input PRF", 2012; the variant of 128 bits is that of their reference code.

/// A hash under way. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct Sip {
    state: [u64; 4],
    /// The bytes that do not fill a word yet, the first one lowest.
    tail: u64,
    /// Bits of `tail`; whole bytes, below 64.
    filled: u32,
    /// Bytes so far. Only the lowest eight bits are hashed.
    length: u64,
}

impl Sip {
    pub(super) const fn new(key: [u8; 16]) -> Self {
        let (key, _) = key.as_chunks::<8>();
        let (low, high) = (u64::from_le_bytes(key[0]), u64::from_le_bytes(key[1]));
        Self {
            state: [
                low ^ 0x736f_6d65_7073_6575,
                // The last byte tells the variant of 128 bits from that of 64.
                high ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                low ^ 0x6c79_6765_6e65_7261,
                high ^ 0x7465_6462_7974_6573,
            ],
            tail: 0,
            filled: 0,
            length: 0,
        }
    }

    /// Adds eight bytes, the lowest first.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a state that is passed is copied; one that is inlined stays in registers"
    )]
    pub(super) fn word(&mut self, word: u64) {
        self.length = self.length.wrapping_add(8);
        self.compress(self.tail | (word << self.filled));
        // With an empty tail nothing is left over.
        self.tail = word.checked_shr(64 - self.filled).unwrap_or(0);
    }

    /// Adds bytes.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a state that is passed is copied; one that is inlined stays in registers"
    )]
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        self.length = self.length.wrapping_add(rest.len() as u64);
        let (rest, bits) = last(bytes);
        self.tail |= rest << self.filled;
        let filled = self.filled + bits;
        if filled >= 64 {
            self.compress(self.tail);
            // Never by 64: an empty tail is not filled by the fewer than eight bytes of a rest.
            self.tail = rest >> (64 - self.filled);
        }
        self.filled = filled % 64;
    }

    /// Both words of the result.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a state that is passed is copied; one that is inlined stays in registers"
    )]
    pub(super) fn finish(mut self) -> [u64; 2] {
        self.compress(self.tail | (self.length << 56));
        self.state[2] ^= 0xee;
        let first = self.squeeze();
        self.state[1] ^= 0xdd;
        [first, self.squeeze()]
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a state that is passed is copied; one that is inlined stays in registers"
    )]
    fn compress(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.state[0] ^= word;
    }

    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a state that is passed is copied; one that is inlined stays in registers"
    )]
    fn squeeze(&mut self) -> u64 {
        (0..3).for_each(|_| self.round());
        let [a, b, c, d] = self.state;
        a ^ b ^ c ^ d
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs as much as the round")]
    const fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32);
        c = c.wrapping_add(b);
        a = a.wrapping_add(d);
        b = b.rotate_left(17) ^ c;
        d = d.rotate_left(21) ^ a;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }
}

/// The bytes behind the last whole word, the first one lowest, and how many bits they are.
#[inline]
fn last(bytes: &[u8]) -> (u64, u32) {
    #[expect(clippy::cast_possible_truncation, reason = "below 64")]
    let bits = 8 * (bytes.len() % 8) as u32;
    let rest = if let Some(word) = bytes.last_chunk::<8>() {
        u64::from_le_bytes(*word)
            .checked_shr(64 - bits)
            .unwrap_or(0)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two may overlap: the bytes that they share are the same.
        u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (bits - 32)
    } else {
        let byte = |index| bytes.get(index).map_or(0, |byte| u64::from(*byte));
        byte(0) | byte(1) << 8 | byte(2) << 16
    };
    (rest, bits)
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher as _;

    use proptest::prelude::*;
    use siphasher::sip128::{Hasher128 as _, SipHasher13};

    use super::*;

    proptest! {
        #[test]
        fn any_pieces_hash_as_the_crate_hashes_them(
            key in any::<[u8; 16]>(),
            pieces in prop::collection::vec(
                (any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)),
                0..8,
            ),
        ) {
            let mut ours = Sip::new(key);
            let mut theirs = SipHasher13::new_with_key(&key);
            for (word, bytes) in &pieces {
                ours.word(*word);
                ours.bytes(bytes);
                theirs.write(&word.to_le_bytes());
                theirs.write(bytes);
            }
            let hash = theirs.finish128();
            prop_assert_eq!(ours.finish(), [hash.h1, hash.h2]);
        }
    }
}
