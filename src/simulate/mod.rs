//! Experiments in virtual time, on the production algorithms.

pub mod concurrency;
