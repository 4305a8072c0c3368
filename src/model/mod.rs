//! The words that every layer uses. Nothing here decides anything.

pub mod limit;
pub mod time;
