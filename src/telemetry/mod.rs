//! What is counted, under which names, and how it is logged.

pub mod by_path;
pub mod call;
pub mod family;
pub mod latency;
pub mod lines;
pub mod logging;
pub mod names;
pub mod openmetrics;
pub mod page;
pub mod refusals;
pub mod registry;
pub mod rule;
pub mod spans;
pub mod stripe;
pub mod top;
