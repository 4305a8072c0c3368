//! Which memory pages the process is given.
//!
//! The allocator asks the kernel for huge pages, and some kernels give them to whoever touches
//! memory. The first touch of one zeroes two megabytes at once, which held a worker for up to
//! 11 ms while ten million counters came in (`benches/memory`: 254 of the ten million insertions
//! took more than 2 ms of CPU, one for almost each huge page); with ordinary pages it is 0 to 4 of
//! them. Huge pages also fill up behind our back: a small server over Redis took 36 MB instead of
//! 18, as the kernel joined pages that were hardly in use. Nothing was faster with them: 100,000
//! and ten million spread keys cost the same or less without.

/// Asks for ordinary pages from here on, for every thread. To be called before anything large is
/// allocated. Where the kernel refuses (or is not Linux) nothing happens: it is a matter of
/// pauses, not of answers.
pub fn use_ordinary_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
