//! Which refusals have a log line: none, unless somebody asks for some.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::model::time::Timestamp;

/// Most lines a second, however many are asked for.
pub const MOST_PER_SECOND: u32 = 1_000;

/// How many refusals are logged. Read as `off`, `1/N` or `N/s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogRefusals {
    /// None.
    #[default]
    Off,
    /// One in so many, at most [`MOST_PER_SECOND`] a second.
    OneIn(u32),
    /// The first so many of each second.
    PerSecond(u32),
}

impl FromStr for LogRefusals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str, most: u32| {
            let number = text.parse().ok();
            number.filter(|number| (1..=most).contains(number))
        };
        let read = match text.split_once('/') {
            None if text == "off" => Some(Self::Off),
            Some(("1", of)) if of != "s" => number(of, u32::MAX).map(Self::OneIn),
            Some((count, "s")) => number(count, MOST_PER_SECOND).map(Self::PerSecond),
            _ => None,
        };
        read.ok_or_else(|| {
            format!("want off, 1/N (one in N) or N/s (N a second, at most {MOST_PER_SECOND})")
        })
    }
}

impl fmt::Display for LogRefusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::OneIn(of) => write!(f, "1/{of}"),
            Self::PerSecond(count) => write!(f, "{count}/s"),
        }
    }
}

/// Chooses refusals. While nobody asks, that is one look at a number that nobody changes.
#[derive(Debug, Default)]
pub struct RefusalLog {
    /// [`LogRefusals`]: what kind in the upper half, how many in the lower.
    wanted: AtomicU64,
    seen: AtomicU64,
    held_back: AtomicU64,
    /// The second in the upper part, its lines in the lower 16 bits.
    lines: AtomicU64,
}

const ONE_IN: u64 = 1;
const PER_SECOND: u64 = 2;

impl RefusalLog {
    /// How many are logged.
    pub fn get(&self) -> LogRefusals {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let number = u32::try_from(wanted & u64::from(u32::MAX)).unwrap_or_default();
        match wanted >> 32 {
            ONE_IN => LogRefusals::OneIn(number),
            PER_SECOND => LogRefusals::PerSecond(number),
            _ => LogRefusals::Off,
        }
    }

    /// Changes it at once.
    pub fn set(&self, wanted: LogRefusals) {
        let wanted = match wanted {
            LogRefusals::Off => 0,
            LogRefusals::OneIn(of) => ONE_IN << 32 | u64::from(of),
            LogRefusals::PerSecond(count) => PER_SECOND << 32 | u64::from(count),
        };
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Some when the refusal at `steady` is to be logged: how many were not since the last one
    /// that was.
    pub fn pass(&self, steady: Timestamp) -> Option<u64> {
        let passes = match self.get() {
            LogRefusals::Off => return None,
            LogRefusals::OneIn(of) => {
                let seen = self.seen.fetch_add(1, Ordering::Relaxed);
                seen.is_multiple_of(of.into()) && self.has_room(steady, MOST_PER_SECOND)
            }
            LogRefusals::PerSecond(count) => self.has_room(steady, count),
        };
        if passes {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn has_room(&self, steady: Timestamp, most: u32) -> bool {
        let second = steady.as_secs() << 16;
        let one_more = |lines: u64| {
            // Another thread may be in the next second already.
            let lines = lines.max(second);
            (lines & 0xffff < u64::from(most)).then(|| lines + 1)
        };
        self.lines
            .try_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_read_as_it_is_written() {
        for text in [
            "off",
            "1/1",
            "1/100",
            "1/4294967295",
            "10/s",
            "1/s",
            "1000/s",
        ] {
            let wanted: LogRefusals = text.parse().unwrap();
            assert_eq!(wanted.to_string(), text);
            let log = RefusalLog::default();
            log.set(wanted);
            assert_eq!(log.get(), wanted);
        }
        for text in [
            "", "on", "2/100", "1/0", "0/s", "1001/s", "1/m", "1/-1", "1",
        ] {
            assert!(text.parse::<LogRefusals>().is_err(), "{text}");
        }
    }

    fn passed(log: &RefusalLog, second: u64, times: usize) -> Vec<u64> {
        let at = Timestamp::from_secs(second);
        (0..times).filter_map(|_| log.pass(at)).collect()
    }

    #[test]
    fn one_in_so_many_passes_and_the_rest_is_counted() {
        let log = RefusalLog::default();
        assert_eq!(passed(&log, 1, 10), [0; 0]);
        log.set(LogRefusals::OneIn(4));
        assert_eq!(passed(&log, 1, 9), [0, 3, 3]);
        log.set(LogRefusals::OneIn(1));
        let most = usize::try_from(MOST_PER_SECOND).unwrap();
        assert_eq!(passed(&log, 1, 5_000).len(), most - 3);
        assert_eq!(passed(&log, 2, 5_000).len(), most);
    }

    #[test]
    fn so_many_a_second_pass() {
        let log = RefusalLog::default();
        log.set(LogRefusals::PerSecond(2));
        assert_eq!(passed(&log, 7, 10), [0, 0]);
        // A thread that is late does not open the second before again.
        assert_eq!(passed(&log, 8, 1), [8]);
        assert_eq!(passed(&log, 7, 10), [0]);
        assert_eq!(passed(&log, 9, 1), [9]);
    }
}
