//! Work in flight: estimates, hints, sizes and laws that adapt a limit. No clock, no state of its
//! own; `store::lease` keeps the leases.
//!
//! * [`little`]: Little's law as estimator and as audit
//! * [`hint`]: when a refused caller should come back
//! * [`law`]: limits that follow what the service can do
//! * [`erlang`], [`sizing`]: what a limit would refuse, and what it should be
//! * [`share`]: who may have how much
//! * [`weight`]: what a request costs beside others
//! * [`peers`]: rules of other systems, for comparison

#![cfg_attr(
    not(test),
    expect(
        clippy::float_arithmetic,
        reason = "estimates and hints are floats; what is counted stays integer"
    )
)]

pub mod erlang;
pub mod hint;
pub mod law;
pub mod little;
pub mod peers;
pub mod real;
pub mod share;
pub mod sizing;
pub mod weight;

#[cfg(test)]
mod cases;
