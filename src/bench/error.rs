//! Why a run cannot be.

use std::{io, time::Duration};

use crate::bench::call::Failure;

/// Why a run cannot be.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No connection, or no thread, or no timer.
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    /// The first call had no answer.
    #[error("the first call failed: {0}")]
    Probe(Failure),
    /// The first call was not answered in time.
    #[error("the first call was not answered within {0:?}")]
    Silent(Duration),
    /// A lane ended before its time: a defect.
    #[error("a lane of the generator ended")]
    LaneEnded,
}
