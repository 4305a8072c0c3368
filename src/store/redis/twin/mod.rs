//! The scripts beside the Rust functions, in one process: thousands of random histories must come
//! out the same.

mod carry;
mod fake;
mod histories;
