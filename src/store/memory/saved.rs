//! Counters that survive a restart: copied out shard by shard, put back before anything is served.
//!
//! What a file has of two counters may be of different moments, a millisecond or a second apart;
//! each alone is what it was at its moment.

use std::io::{self, Read};

use parking_lot::Mutex;

use super::{
    MemoryStore,
    cell::{Cell, LogCell},
    shard::Shard,
    table::{Saved, Walk},
};
use crate::{
    model::{limit::State, time::Timestamp},
    store::state::wire::{Input, Put, Unreadable},
};

/// What follows is a counter of constant size.
const COUNTER: u8 = 1;
/// What follows is a log.
const LOG: u8 = 2;
/// No counter follows.
const END: u8 = 0;

impl MemoryStore {
    /// Hands every lasting counter to `put`, in bytes that [`MemoryStore::restore`] reads. No lock
    /// is held while `put` runs, and none for longer than it takes to copy 256 KiB.
    ///
    /// # Errors
    /// Of `put`.
    pub fn save(
        &self,
        now: Timestamp,
        mut put: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut part = Vec::new();
        for shard in &self.shards {
            save_table::<State>(shard, COUNTER, now, &mut part, &mut put)?;
            save_table::<LogCell>(shard, LOG, now, &mut part, &mut put)?;
        }
        part.clear();
        part.put_u8(END);
        put(&part)
    }

    /// Reads what [`MemoryStore::save`] wrote and puts back what has not ended by `now`. Says how
    /// many counters that were.
    ///
    /// # Errors
    /// What cannot be read; counters before it are in place.
    pub fn restore<R: Read>(
        &self,
        input: &mut Input<R>,
        now: Timestamp,
    ) -> Result<u64, Unreadable> {
        let mut restored = 0;
        loop {
            let kept = match input.u8()? {
                END => return Ok(restored),
                COUNTER => self.restore_one(Saved::<State>::read(input)?, now),
                LOG => self.restore_one(Saved::<LogCell>::read(input)?, now),
                _ => return Err(Unreadable::Meaningless("a kind of counter")),
            };
            restored += u64::from(kept);
        }
    }

    fn restore_one<C: Cell>(&self, saved: Saved<C>, now: Timestamp) -> bool {
        if saved.has_ended(now) {
            return false;
        }
        let index = saved.place() as usize & self.mask;
        self.shards
            .get(index)
            .is_some_and(|shard| shard.lock().restore(saved, now, &self.room))
    }
}

/// One table of a shard, in parts: the lock is let go between them.
fn save_table<C: Cell>(
    shard: &Mutex<Shard>,
    tag: u8,
    now: Timestamp,
    part: &mut Vec<u8>,
    put: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut from = Some(Walk::default());
    while let Some(walk) = from {
        part.clear();
        from = C::table(&mut shard.lock()).save(tag, walk, now, part);
        put(part)?;
    }
    Ok(())
}
