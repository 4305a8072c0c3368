//! One binary, one module per subject.
#![cfg(test)]

mod config;
mod decisions;
mod metrics;
mod support;
mod yaml;
