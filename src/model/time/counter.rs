//! The processor's counter of ticks (the time stamp counter of x86-64, the system counter of
//! aarch64), as a line of nanoseconds that keeps to the monotonic clock.
//!
//! It is trusted where the kernel tells time by it: the kernel has found that it runs at one rate
//! in all states of the processor and alike on all cores, and gives it up when it finds otherwise.
//! Everywhere else there is no such line, and the monotonic clock is read.

use std::{cell::Cell, fs, sync::OnceLock};

use parking_lot::Mutex;

use super::{
    kernel::monotonic,
    latch::Latch,
    line::{Course, Doubt, Keeper, Reading, never_back},
};

/// Which counter the kernel tells time by.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// What that file says when it is the one that `quanta` reads.
const TRUSTED: &str = if cfg!(target_arch = "aarch64") {
    "arch_sys_counter"
} else {
    "tsc"
};

thread_local! {
    /// The latest reading of this thread. A thread sees its own line only, so this costs nobody
    /// else anything.
    static LATEST: Cell<u64> = const { Cell::new(0) };
}

/// The counter of this machine. There is one per process: it is measured once, and whoever follows
/// it does so for all.
#[derive(Debug)]
pub(super) struct Counter {
    /// Reads the ticks. Its own scale is never corrected, so it is only where ours begins.
    ticks: quanta::Clock,
    course: Latch,
    keeper: Mutex<Keeper>,
}

impl Counter {
    /// The counter, if it is trusted. The first call measures it, which takes half a millisecond,
    /// on a machine that has no core to spare up to 200 ms.
    pub(super) fn trusted() -> Option<&'static Self> {
        static COUNTER: OnceLock<Option<Counter>> = OnceLock::new();
        COUNTER.get_or_init(Self::measure).as_ref()
    }

    fn measure() -> Option<Self> {
        if clock_source()? != TRUSTED {
            return None;
        }
        #[expect(clippy::disallowed_methods, reason = "this is behind the door")]
        let ticks = quanta::Clock::new();
        // Exactly one nanosecond a tick: `quanta` found no counter and reads the monotonic clock.
        let rate = ticks.delta_as_nanos(0, 1 << 32);
        if rate == 1 << 32 {
            return None;
        }
        let keeper = Keeper::begin(read(&ticks), rate)?;
        Some(Self {
            ticks,
            course: Latch::new(keeper.course().words()),
            keeper: Mutex::new(keeper),
        })
    }

    /// The line now: nanoseconds of the monotonic clock. Never less than this thread was told
    /// before.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        let line = self.course.read(|words| {
            Course::from_words(words).now(
                // Inside, so that a thread which stops for long in between asks again.
                || self.ticks.raw(),
                monotonic,
            )
        });
        LATEST.with(|latest| never_back(latest, line))
    }

    /// Keeps the line to the monotonic clock; gives the counter up, for good, when it cannot be
    /// trusted any more.
    pub(super) fn follow(&self) {
        // Somebody else is at it.
        let Some(mut keeper) = self.keeper.try_lock() else {
            return;
        };
        if let Course::Monotonic { .. } = keeper.course() {
            return;
        }
        let doubt = doubt(clock_source());
        let reading = read(&self.ticks);
        let checked = match doubt {
            Some(doubt) => {
                keeper.give_up(reading);
                Err(doubt)
            }
            None => keeper.check(reading),
        };
        self.course.write(keeper.course().words());
        if let Err(why) = checked {
            tracing::warn!(
                %why,
                "the processor's counter is not trusted any more; the time is read from the kernel from here on"
            );
        }
    }
}

/// The name of the kernel's clock source. `None` where it does not tell, and where the process has no
/// file descriptor left to ask with.
fn clock_source() -> Option<String> {
    let name = fs::read_to_string(CLOCK_SOURCE).ok()?;
    Some(name.trim_end().to_owned())
}

/// What a clock source says against a counter that was trusted; none that cannot be read does.
fn doubt(source: Option<String>) -> Option<Doubt> {
    source.filter(|name| name != TRUSTED).map(Doubt::Kernel)
}

/// Both clocks: the ticks between two readings of the monotonic clock, the closest of a few.
fn read(ticks: &quanta::Clock) -> Reading {
    const FURTHER_TRIES: usize = 7;
    let once = || {
        let before = monotonic();
        let ticks = ticks.raw();
        let apart = monotonic().saturating_sub(before);
        Reading {
            ticks,
            monotonic: before.saturating_add(apart / 2),
            apart,
        }
    };
    (0..FURTHER_TRIES)
        .map(|_| once())
        .fold(
            once(),
            |best, next| if next.apart < best.apart { next } else { best },
        )
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_another_clock_source_is_a_reason_to_doubt() {
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(doubt(name(TRUSTED)), None);
        assert_eq!(doubt(None), None);
        let other = name("hpet").map(Doubt::Kernel);
        assert_eq!(doubt(name("hpet")), other);
    }

    /// Where the machine has no counter that is trusted, there is nothing to try.
    #[test]
    fn every_thread_reads_a_line_that_never_runs_backwards_while_it_is_followed() {
        let Some(counter) = Counter::trusted() else {
            return;
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut latest = counter.now();
                    for _ in 0..100_000 {
                        let now = counter.now();
                        assert!(now >= latest, "{now} after {latest}");
                        latest = now;
                    }
                });
            }
            for _ in 0..100 {
                counter.follow();
            }
        });
    }
}
