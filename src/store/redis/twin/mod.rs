//! The scripts beside the Rust functions, in one process: thousands of random histories must come
//! out the same.

mod fake;
mod histories;
