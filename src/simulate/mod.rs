//! What limits do to requests, tried out in virtual time.
//!
//! An experiment file says what is tried ([`experiment`]); its `kind` says by whom. `kind: limits`
//! ([`limits`]) sends the same requests ([`arrivals`]) to several limits ([`run`]) and compares
//! what passes; the others are scenarios of work in flight ([`concurrency`]). Every kind ends in a
//! [`report`]: tables and a figure.

pub mod arrivals;
pub mod concurrency;
pub mod experiment;
pub mod limits;
pub mod report;
pub mod run;
