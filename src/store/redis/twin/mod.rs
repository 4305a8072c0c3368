//! The scripts beside the Rust functions, in one process: thousands of random histories must come
//! out the same.

mod carry;
pub(super) mod fake;
mod histories;
