//! The kernel's clocks: beside the processor's counter the one door through which time enters.

use rustix::time::{ClockId, clock_gettime};

use super::NANOS_PER_SECOND;

/// The monotonic clock, in nanoseconds.
pub(super) fn monotonic() -> u64 {
    nanos(ClockId::Monotonic)
}

/// The date, in nanoseconds since 1970.
pub(super) fn date() -> u64 {
    nanos(ClockId::Realtime)
}

/// Not through the standard library, whose checked arithmetic costs a fourth of the reading.
fn nanos(clock: ClockId) -> u64 {
    let since = clock_gettime(clock);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(since.tv_sec)
        .saturating_mul(NANOS_PER_SECOND)
        .saturating_add(part(since.tv_nsec))
}
