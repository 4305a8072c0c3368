//! Leaky bucket as a meter: admits when level + cost ≤ burst; drains at units per period.
//!
//! The mirror image of the [token bucket](super::token_bucket): level = burst − tokens, what drains
//! here refills there. State, arithmetic and answers are the same, so they are written once.

pub(super) use super::token_bucket::{carry, give_back, settled, step};
