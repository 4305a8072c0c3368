//! porteiro (Portuguese: doorkeeper) answers one question for every proxy and service:
//! *may this request pass, and if not, when should it come back?*

pub mod algorithm;
pub mod api;
pub mod bench;
pub mod chart;
pub mod cli;
pub mod client;
pub mod config;
pub mod engine;
pub mod model;
pub mod pages;
pub mod proto;
pub mod replay;
pub mod rules;
pub mod server;
pub mod simulate;
pub mod store;
pub mod telemetry;
pub mod trace;

// Pieces of tests that the unit tests share with tests/suite name this crate as those do.
#[cfg(test)]
extern crate self as porteiro;
