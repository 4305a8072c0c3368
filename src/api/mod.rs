//! Wire words ↔ our words, one file per protocol.

pub mod bounds;
