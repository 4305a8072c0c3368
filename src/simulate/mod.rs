//! What limits do to requests, tried out in virtual time.
//!
//! An experiment file says what is tried ([`experiment`]); its `kind` says by whom. `kind: limits`
//! ([`limits`]) sends the same requests ([`arrivals`]) to several limits ([`run`]) and compares
//! what passes; the others try scenarios of work in flight ([`concurrency`]) with many seeds. Every
//! kind ends in a [`report`]: tables and a figure.

pub mod arrivals;
mod cases;
pub mod concurrency;
pub(crate) mod expect;
pub mod experiment;
pub mod limits;
pub mod report;
pub mod run;
