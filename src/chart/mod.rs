//! Results as people read them.

pub mod table;
