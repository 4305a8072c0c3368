//! How large a book may get.

/// What bounds the memory of a book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Live leases. Default a million.
    pub leases: usize,
    /// Keys. Default 100 000.
    pub keys: usize,
    /// Live leases of one holder. Default 100 000.
    pub leases_per_holder: u64,
    /// Live leases of one session. Default 10 000.
    pub leases_per_session: usize,
    /// Requests that wait. Default 100 000.
    pub waiters: usize,
    /// Refused requests that have a slot. Default 65 536.
    pub bookings: usize,
    /// Early releases, and refused names, that are remembered. Default 65 536 each.
    pub marks: usize,
    /// Holders whose leaks are counted. Default 10 000.
    pub holders: usize,
    /// Limits whose rule is gone and whose counts are kept. Default 1000.
    pub limits: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            leases: 1_000_000,
            keys: 100_000,
            leases_per_holder: 100_000,
            leases_per_session: 10_000,
            waiters: 100_000,
            bookings: 65_536,
            marks: 65_536,
            holders: 10_000,
            limits: 1_000,
        }
    }
}
