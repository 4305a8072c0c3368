//! Scenarios of work in flight: what a limit, a queue, a hint, a law or a restart does to a service
//! and to its callers. Each runs the production [`crate::store::lease::LeaseBook`] and laws under
//! a clock of its own; the service behind it is simulated.
//!
//! Rules for all of them: arrivals are Poisson; exponential, constant and Erlang holds; events of
//! one instant come in the order arrivals, then completions; a percentile p of n sorted values is
//! the value number ⌊p·n⌋.
//!
//! | scenario | question |
//! |---|---|
//! | [`gate`] | what does a limit admit, and what does a slow-down do to it? |
//! | [`collapse`] | what does a queue do to goodput under overload? |
//! | [`slowdown`] | a rate limit against a concurrency limit when the service becomes slow |
//! | [`neighbours`] | one loud tenant and thirty small ones |
//! | [`leaks`] | what do leases cost that nobody gives back? |
//! | [`stacked`] | a rate limit and a concurrency limit, one after the other or as one |
//! | [`classes`] | who is refused when all is not enough |
//! | [`adaptive`] | laws that find the limit |
//! | [`hints`] | what refused callers are told |
//! | [`accuracy`] | how true a hint is |
//! | [`restart`] | what a restart forgets |
//! | [`heavy`] | requests of one permit and of ten |
//! | [`counters`] | what counters do where leases should be |
//! | [`clients`] | what refused clients do to a rate limit that come back |

pub mod accuracy;
pub mod adaptive;
mod agenda;
pub mod classes;
pub mod clients;
pub mod collapse;
pub mod counters;
mod desk;
pub mod gate;
pub mod heavy;
pub mod hints;
pub mod leaks;
pub mod neighbours;
mod random;
pub mod restart;
pub mod slowdown;
pub mod stacked;
mod statistics;
mod workers;

pub use self::random::Hold;
