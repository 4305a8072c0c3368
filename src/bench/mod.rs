//! An open-loop load generator for any server of Envoy's rate limit protocol.
//!
//! *Open loop*: calls leave by a schedule that does not wait for answers, as the calls of real
//! clients do. A latency is measured from the instant the schedule named, so that a call which had
//! to wait for its turn counts its waiting: a server that stands still for a second shows a second,
//! not one slow answer (coordinated omission).
//!
//! # Follow one call
//! 1. [`schedule`] says when it is due, [`keys`] for which key.
//! 2. [`lane`] waits for that instant ([`pace`]) on its own thread and its own connections.
//! 3. [`template`] makes the bytes, [`wire`] finds a connection, [`call`] sends and reads the answer.
//! 4. [`record`] counts it, and [`report`] adds the lanes up and says who was the limit: the
//!    generator notices when it could not keep its own schedule, and says so.

mod call;
mod connection;
mod error;
pub mod keys;
mod lane;
mod lease;
mod pace;
pub mod picture;
mod probe;
mod record;
pub mod report;
mod run;
pub mod schedule;
pub mod table;
pub mod target;
pub mod template;
mod wire;

use std::num::{NonZeroU64, NonZeroUsize};

pub use error::BenchError;
pub use run::{Listener, run};

use crate::{
    bench::{keys::Distribution, schedule::Arrivals, target::Target, template::Template},
    model::time::Span,
};

/// What to send, where to and how fast.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub target: Target,
    /// What a call asks.
    pub template: Template,
    /// Number of different keys.
    pub keys: NonZeroU64,
    /// How often each key comes.
    pub distribution: Distribution,
    /// Calls per second, one measurement after the other.
    pub rates: Vec<NonZeroU64>,
    /// How calls are spread over time.
    pub arrivals: Arrivals,
    /// How long each rate is sent before it is measured.
    pub warm_up: Span,
    /// How long each rate is measured.
    pub duration: Span,
    /// How long answers are awaited after the last call of a rate.
    pub drain: Span,
    /// How long a lease is held before it is given back; for `Acquire` only.
    pub hold: Span,
    /// Connections, spread over the lanes.
    pub connections: NonZeroUsize,
    /// Threads; each has its own connections. At most one per connection.
    pub lanes: NonZeroUsize,
    /// Most calls without an answer, all lanes together. Beyond that the schedule is held back:
    /// memory stays bounded, and the calls that wait count their waiting.
    pub max_in_flight: NonZeroUsize,
    /// Sent as `grpc-timeout`; none: the server may take as long as it likes.
    pub deadline: Option<Span>,
    /// The same seed gives the same keys and instants.
    pub seed: u64,
}
