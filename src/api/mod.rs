//! Wire words ↔ our words, one file per protocol.

pub mod bounds;
pub mod contract;
pub mod counters;
pub mod deadline;
pub mod envoy_rls;
pub mod explain;
pub mod headers;
pub mod json;
pub mod limiter;
pub mod metadata;
pub mod privileges;
pub mod shown;
pub mod status;
pub mod text;
pub mod top;
pub mod wire;
