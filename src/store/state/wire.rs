//! Bytes of the state file: little-endian numbers, texts with their length, a checksum over all.

use std::{
    hash::Hasher as _,
    io::{self, Read, Write},
};

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::model::time::{Span, Timestamp};

/// Longest text that is believed.
const MAX_TEXT: u32 = 1 << 20;

/// Why bytes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The machine said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// They mean nothing.
    #[error("{0} is not what it should be")]
    Meaningless(&'static str),
}

/// A checksum that grows with what passes. Guards against accidents, not against forgery: whoever
/// can write the file can do worse.
pub(super) struct Checksum {
    hash: SipHasher13,
    length: u64,
}

impl Checksum {
    pub(super) fn new() -> Self {
        Self {
            hash: SipHasher13::new_with_key(b"porteiro's state"),
            length: 0,
        }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.hash.write(bytes);
        self.length = self.length.saturating_add(bytes.len() as u64);
    }

    /// Length and checksum, as they stand at the end of the file.
    pub(super) fn trailer(&self) -> [u8; TRAILER] {
        let mut trailer = [0; TRAILER];
        let (length, sum) = trailer.split_at_mut(8);
        length.copy_from_slice(&self.length.to_le_bytes());
        sum.copy_from_slice(&self.hash.finish128().as_u128().to_le_bytes());
        trailer
    }
}

/// Ends a file of anybody's making as [`write`](super::write) ends ours.
pub fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    let mut checksum = Checksum::new();
    checksum.add(&body);
    body.extend_from_slice(&checksum.trailer());
    body
}

/// Bytes of length and checksum.
pub(super) const TRAILER: usize = 24;

/// Where a state is written to: counts and sums what passes.
pub(super) struct Output<W> {
    inner: W,
    checksum: Checksum,
}

impl<W: Write> Output<W> {
    pub(super) fn new(inner: W) -> Self {
        Self {
            inner,
            checksum: Checksum::new(),
        }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.add(bytes);
        self.inner.write_all(bytes)
    }

    /// Ends with length and checksum.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.inner.write_all(&self.checksum.trailer())?;
        Ok(self.inner)
    }
}

/// What can be appended to bytes.
pub trait Put {
    /// One byte.
    fn put_u8(&mut self, number: u8);
    /// Two bytes.
    fn put_u16(&mut self, number: u16);
    /// Four bytes.
    fn put_u32(&mut self, number: u32);
    /// Eight bytes.
    fn put_u64(&mut self, number: u64);
    /// Sixteen bytes.
    fn put_u128(&mut self, number: u128);
    /// Length and bytes; what is longer than is believed at reading is cut.
    fn put_bytes(&mut self, bytes: &[u8]);
    /// A length of time.
    fn put_span(&mut self, span: Span) {
        self.put_u64(span.as_nanos());
    }
    /// A point in time.
    fn put_time(&mut self, time: Timestamp) {
        self.put_u64(time.as_nanos());
    }
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, number: u8) {
        self.push(number);
    }

    fn put_u16(&mut self, number: u16) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn put_u32(&mut self, number: u32) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn put_u64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn put_u128(&mut self, number: u128) {
        self.extend_from_slice(&number.to_le_bytes());
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(MAX_TEXT);
        self.put_u32(length);
        self.extend(bytes.iter().take(length as usize));
    }
}

/// Where a state is read from.
#[derive(Debug)]
pub struct Input<R>(R);

impl<R: Read> Input<R> {
    /// Reads from here.
    pub const fn new(inner: R) -> Self {
        Self(inner)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Unreadable> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Unreadable> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Unreadable> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, Unreadable> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// A length of time.
    pub fn span(&mut self) -> Result<Span, Unreadable> {
        Ok(Span::from_nanos(self.u64()?))
    }

    /// A point in time.
    pub fn time(&mut self) -> Result<Timestamp, Unreadable> {
        Ok(Timestamp::from_nanos(self.u64()?))
    }

    /// Bytes with their length.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Unreadable> {
        let length = self.u32()?;
        if length > MAX_TEXT {
            return Err(Unreadable::Meaningless("the length of a text"));
        }
        let mut bytes = Vec::new();
        (&mut self.0).take(length.into()).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == u64::from(length) {
            Ok(bytes)
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
        }
    }

    /// A text with its length.
    pub fn text(&mut self) -> Result<String, Unreadable> {
        String::from_utf8(self.bytes()?).map_err(|_| Unreadable::Meaningless("a text"))
    }
}
