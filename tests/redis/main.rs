//! The shared store against real servers, which these tests start on free ports of the loopback
//! interface and end themselves.
//!
//! Needs `redis-server` 6.2 or later (Debian: `apt-get install redis-server`).
#![cfg(test)]

#[path = "../suite/cases.rs"]
mod cases;
mod cluster;
#[path = "../suite/decisions.rs"]
mod decisions;
mod exact;
mod failures;
mod fleet;
mod histories;
mod leases;
mod limits;
mod local_cache;
mod processes;
mod roads;
mod server;
mod shaper;
mod slice_processes;
mod slices;
mod spread;
#[expect(dead_code, reason = "the suite's services in memory stay there")]
#[path = "../suite/support.rs"]
mod suite;
mod support;
mod wire;
#[path = "../suite/yaml.rs"]
mod yaml;
