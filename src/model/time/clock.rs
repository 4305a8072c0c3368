//! The two lines of the machine's time, and a clock that is moved by hand.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    Now, Span, Timestamp,
    counter::Counter,
    kernel::{date, monotonic},
};

/// Where `now` comes from. Cheap to clone; all clones tell the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Machine(Arc<Machine>),
    Manual(ManualClock),
}

impl Clock {
    /// The machine's clock, by way of the processor's counter where the kernel trusts that. The
    /// first one of a process measures the counter, which takes half a millisecond, rarely more.
    pub fn machine() -> Self {
        Self::of(Counter::trusted())
    }

    /// The machine's clock as the kernel tells it: for commands that read it a few times, or that
    /// check on others.
    pub fn kernel() -> Self {
        Self::of(None)
    }

    fn of(counter: Option<&'static Counter>) -> Self {
        Self(Source::Machine(Arc::new(Machine::start(counter))))
    }

    /// Reads the clock. One reading per request.
    #[inline]
    pub fn now(&self) -> Now {
        match &self.0 {
            Source::Machine(machine) => machine.now(),
            Source::Manual(clock) => clock.now(),
        }
    }

    /// Keeps the steady line to the kernel's monotonic clock, and the wall line to its date. To be
    /// called every second or so from outside the workers; where nobody does, both lines are off by
    /// tens of ppm of the time since the start.
    ///
    /// The processor's counter is steered smoothly, to within a millisecond. If it disagrees by more
    /// than the drift of a clock, or the kernel does not use it any more, it is given up for good:
    /// both lines go on with the monotonic clock, from where that is or from where they are,
    /// whichever is later.
    ///
    /// A date ahead of the line (suspend, a late time server) is taken over at once. A date behind
    /// the line is approached by slowing down, at most [`SLEW_PER_FOLLOW`] per call, so that the
    /// line never runs backwards and nobody is charged or freed twice for the same instant.
    pub fn follow(&self) {
        if let Source::Machine(machine) = &self.0 {
            machine.follow();
        }
    }
}

/// How far one [`Clock::follow`] moves the wall line towards a date that lies behind it.
pub const SLEW_PER_FOLLOW: Span = Span::from_millis(100);

/// A wall line that is this close to the date is left alone: the line that it comes out of is no
/// closer to the monotonic clock while that is steered.
const CLOSE_TO_DATE: Span = Span::from_millis(1);

#[derive(Debug)]
struct Machine {
    /// What both lines come out of; without it, the monotonic clock.
    counter: Option<&'static Counter>,
    /// In nanoseconds of the machine's monotonic clock.
    start: u64,
    /// Wall time of `start`, corrected by `follow`.
    wall_of_start: AtomicU64,
    /// The latest wall reading after a correction downwards: the line waits there.
    floor: AtomicU64,
}

impl Machine {
    fn start(counter: Option<&'static Counter>) -> Self {
        Self {
            counter,
            start: Self::line(counter),
            wall_of_start: AtomicU64::new(date()),
            floor: AtomicU64::new(0),
        }
    }

    #[inline]
    fn line(counter: Option<&'static Counter>) -> u64 {
        match counter {
            Some(counter) => counter.now(),
            None => monotonic(),
        }
    }

    #[inline]
    fn now(&self) -> Now {
        let elapsed = Self::line(self.counter).saturating_sub(self.start);
        let wall = self
            .wall_of_start
            .load(Ordering::Relaxed)
            .saturating_add(elapsed);
        let wall = wall.max(self.floor.load(Ordering::Relaxed));
        Now {
            wall: Timestamp(wall),
            steady: Timestamp(elapsed),
        }
    }

    fn follow(&self) {
        if let Some(counter) = self.counter {
            counter.follow();
        }
        let line = self.now().wall.0;
        let date = date();
        if date.abs_diff(line) <= CLOSE_TO_DATE.0 {
            return;
        }
        if date >= line {
            self.wall_of_start.fetch_add(date - line, Ordering::Relaxed);
        } else {
            // Hold the line at its present point while the slower base catches up underneath.
            self.floor.fetch_max(line, Ordering::Relaxed);
            let step = (line - date).min(SLEW_PER_FOLLOW.0);
            self.wall_of_start.fetch_sub(step, Ordering::Relaxed);
        }
    }
}

/// A clock that moves only when told to. Both lines move together unless a test steps one.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    wall: Arc<AtomicU64>,
    steady: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that stands at `wall`; its steady line starts at zero.
    pub fn at(wall: Timestamp) -> Self {
        Self {
            wall: Arc::new(AtomicU64::new(wall.0)),
            steady: Arc::default(),
        }
    }

    /// The clock to hand to the code under test.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(self.clone()))
    }

    /// The present reading.
    pub fn now(&self) -> Now {
        Now {
            wall: Timestamp(self.wall.load(Ordering::SeqCst)),
            steady: Timestamp(self.steady.load(Ordering::SeqCst)),
        }
    }

    /// Moves both lines forward.
    pub fn advance(&self, span: Span) {
        self.wall.fetch_add(span.0, Ordering::SeqCst);
        self.steady.fetch_add(span.0, Ordering::SeqCst);
    }

    /// Sets the wall line, forwards or backwards, as a step of the machine's date would; the
    /// steady line follows only forwards.
    pub fn set_wall(&self, wall: Timestamp) {
        let before = self.wall.swap(wall.0, Ordering::SeqCst);
        self.steady
            .fetch_add(wall.0.saturating_sub(before), Ordering::SeqCst);
    }

    /// Steps the wall line alone.
    pub fn step_wall(&self, wall: Timestamp) {
        self.wall.store(wall.0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::NANOS_PER_SECOND;

    #[test]
    fn manual_clock_moves_only_by_hand() {
        let manual = ManualClock::at(Timestamp::from_secs(10));
        let clock = manual.clock();
        assert_eq!(clock.now(), clock.now());
        manual.advance(Span::from_millis(5));
        assert_eq!(clock.now().steady, Timestamp::from_nanos(5_000_000));
        manual.step_wall(Timestamp::from_secs(1));
        assert_eq!(clock.now().wall, Timestamp::from_secs(1));
        assert_eq!(clock.now().steady, Timestamp::from_nanos(5_000_000));
    }

    #[test]
    fn machine_wall_line_never_runs_backwards() {
        let clock = Clock::machine();
        let Source::Machine(machine) = &clock.0 else {
            panic!("machine clock expected")
        };
        let before = clock.now().wall;
        // As if the date had been an hour ahead when the process started.
        machine
            .wall_of_start
            .fetch_add(3_600 * NANOS_PER_SECOND, Ordering::Relaxed);
        let ahead = clock.now().wall;
        assert!(ahead > before);
        clock.follow();
        assert!(clock.now().wall >= ahead);
    }
}
