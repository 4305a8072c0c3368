//! One binary, one module per subject.
#![cfg(test)]

mod batch;
mod bench;
mod cases;
mod certificates;
mod config;
mod contract;
mod decisions;
mod examples;
mod experiments;
mod explain;
mod fairness;
mod flight;
mod frames;
mod fuzzed;
mod hints;
mod leases;
mod limiter;
mod metrics;
mod overload;
mod peek;
mod process;
mod refusals;
mod replay;
mod rules_language;
mod server;
mod serving;
mod simulate;
mod simulations;
mod stacking;
mod state;
mod support;
mod tls;
mod top;
mod xds;
mod yaml;
