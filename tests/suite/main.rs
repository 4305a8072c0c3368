//! One binary, one module per subject.
#![cfg(test)]

mod bench;
mod config;
mod decisions;
mod leases;
mod metrics;
mod replay;
mod server;
mod serving;
mod rules_language;
mod support;
mod yaml;
