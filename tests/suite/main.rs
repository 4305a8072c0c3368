//! One binary, one module per subject.
#![cfg(test)]

mod bench;
mod config;
mod decisions;
mod leases;
mod metrics;
mod replay;
mod support;
mod yaml;
