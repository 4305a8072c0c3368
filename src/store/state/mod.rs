//! The state file: what has to survive a restart.
//!
//! ```text
//! magic 8 | version 4 | written 8 | clean 1 | secret 16 | boot 4 | fence 8 | unknown for 8
//! books of leases | counters | quotas that counters were written under
//! length of all before 8 | checksum of all before 16
//! ```
//!
//! Numbers are little-endian. A file is written beside its predecessor and renamed over it, so that
//! at any moment the name stands for a whole one; length and checksum are verified before anything
//! of it is believed. The names of counters are keyed hashes: the file has their key, so it is
//! readable by its owner only.
//!
//! # What a kill costs
//!
//! A file is as old as the time since it was written, at most about one interval. What was counted
//! after that is forgotten: a limit may admit once more what it admitted in that time. Leases that
//! were granted, renewed or given back after that are not known as they are. So a start after an
//! unclean end takes over those that are known and, where a rule says `on_restart: snapshot`, grants
//! nothing new until a TTL has passed since the start: when the life before ended is not known, but
//! not later than that. Fences jump ahead, so that they keep growing.

mod books;
mod file;
mod quota;
#[cfg(test)]
mod tests;
pub mod wire;

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use self::wire::{Input, Output, Put, Unreadable};
pub use self::{
    file::{Broken, StateError, StateFile, read_verified},
    wire::sealed,
};
use crate::{
    model::{
        key::KeySecret,
        time::{Span, Timestamp},
    },
    rules::inherit::Past,
    store::{lease::Saved, memory::MemoryStore},
};

/// First bytes of every state file.
const MAGIC: [u8; 8] = *b"porteiro";
/// What this program writes, and all that it reads.
const VERSION: u32 = 1;
/// Most elements of a list that is read as a whole.
const MAX_LIST: u32 = 10_000_000;

/// What is to be written, apart from the counters.
#[derive(Debug)]
pub struct Snapshot {
    /// The date, read after the leases were saved: what is left of them is never told too short.
    pub written: Timestamp,
    /// Nothing is decided after this.
    pub is_clean: bool,
    /// Names the counters.
    pub secret: KeySecret,
    /// The leases.
    pub leases: SavedLeases,
}

/// The leases of a life of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedLeases {
    /// Which life.
    pub boot: u32,
    /// No larger fence was told.
    pub fence: u64,
    /// So long ago can the last lease have been granted that is not known.
    pub unknown_for: Span,
    /// One per domain.
    pub books: Vec<SavedBook>,
}

/// The leases of one domain.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedBook {
    /// The domain.
    pub domain: Arc<str>,
    /// Its number in the ids of leases.
    pub number: u16,
    /// The leases.
    pub saved: Saved,
}

/// What was read, apart from the counters, which are in their store.
#[derive(Debug)]
pub struct Restored {
    /// All but the counters.
    pub snapshot: Snapshot,
    /// Counters that had not ended.
    pub counters: u64,
    /// The quotas that they were written under.
    pub past: Vec<Past>,
}

/// Writes a state. The quotas are asked for after the counters were copied: so every version that a
/// counter can have been written under is among them.
///
/// # Errors
/// Of `to`.
pub fn write<W: Write>(
    to: W,
    snapshot: &Snapshot,
    memory: &MemoryStore,
    past: impl FnOnce() -> Vec<Past>,
) -> io::Result<W> {
    let mut output = Output::new(to);
    let mut part = Vec::new();
    part.extend_from_slice(&MAGIC);
    part.put_u32(VERSION);
    part.put_time(snapshot.written);
    part.put_u8(snapshot.is_clean.into());
    part.extend_from_slice(&snapshot.secret.bytes());
    part.put_u32(snapshot.leases.boot);
    part.put_u64(snapshot.leases.fence);
    part.put_span(snapshot.leases.unknown_for);
    put_length(&mut part, snapshot.leases.books.len());
    output.put(&part)?;
    for book in &snapshot.leases.books {
        part.clear();
        books::put_book(&mut part, book);
        output.put(&part)?;
    }
    memory.save(snapshot.written, |part| output.put(part))?;
    let past = past();
    part.clear();
    put_length(&mut part, past.len());
    output.put(&part)?;
    for past in &past {
        part.clear();
        quota::put_past(&mut part, past);
        output.put(&part)?;
    }
    output.finish()
}

/// Reads what [`write()`] wrote behind magic and version, into `memory`.
fn read<R: Read>(
    input: &mut Input<R>,
    memory: &MemoryStore,
    now: Timestamp,
) -> Result<Restored, Unreadable> {
    let written = input.time()?;
    let is_clean = input.u8()? == 1;
    let secret = KeySecret::new(input.array()?);
    let boot = input.u32()?;
    let fence = books::running(input)?;
    let leases = SavedLeases {
        boot,
        fence,
        unknown_for: input.span()?,
        books: list(input, books::book)?,
    };
    let counters = memory.restore(input, now)?;
    Ok(Restored {
        snapshot: Snapshot {
            written,
            is_clean,
            secret,
            leases,
        },
        counters,
        past: list(input, quota::past)?,
    })
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn list<R: Read, T>(
    input: &mut Input<R>,
    read: impl Fn(&mut Input<R>) -> Result<T, Unreadable>,
) -> Result<Vec<T>, Unreadable> {
    let length = input.u32()?;
    if length > MAX_LIST {
        return Err(Unreadable::Meaningless("the length of a list"));
    }
    // Grows as elements come: a length alone takes no memory.
    let mut list = Vec::new();
    for _ in 0..length {
        list.push(read(input)?);
    }
    Ok(list)
}
