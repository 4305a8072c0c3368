//! The shared store against real servers, which these tests start on free ports of the loopback
//! interface and end themselves.
//!
//! Needs `redis-server` 6.2 or later (Debian: `apt-get install redis-server`).
#![cfg(test)]

mod cluster;
mod exact;
mod failures;
mod histories;
mod limits;
mod server;
mod wire;
