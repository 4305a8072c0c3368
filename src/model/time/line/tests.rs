//! Both clocks are moved by hand.

use std::cell::Cell;

use super::*;

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Ticks per 10 ns, as calibrated.
const TICKS: u64 = 26;
const RATE: u64 = (10 << RATE_BITS) / TICKS;

/// A machine and a thread that reads its clock.
struct Machine {
    ticks: u64,
    monotonic: u64,
    keeper: Keeper,
    latest: Cell<u64>,
}

impl Machine {
    fn start() -> Self {
        let (ticks, monotonic) = (77 * SECOND, 5 * SECOND);
        let reading = Reading {
            ticks,
            monotonic,
            apart: 0,
        };
        Self {
            ticks,
            monotonic,
            keeper: Keeper::begin(reading, RATE).unwrap(),
            latest: Cell::new(0),
        }
    }

    /// The monotonic clock moves by `nanos`, the counter by what was calibrated and `ppm` more.
    /// The thread reads the clock now and then.
    fn run(&mut self, nanos: u64, ppm: i64) {
        let million: u64 = 1_000_000;
        for _ in 0..10 {
            let nanos = nanos / 10;
            self.monotonic += nanos;
            let ticks =
                u128::from(nanos * TICKS) * u128::from(million.checked_add_signed(ppm).unwrap());
            self.ticks += u64::try_from(ticks / u128::from(10 * million)).unwrap();
            self.read();
        }
    }

    fn reading(&self) -> Reading {
        Reading {
            ticks: self.ticks,
            monotonic: self.monotonic,
            apart: 30,
        }
    }

    /// What the thread is told, which is never less than before.
    fn read(&self) -> u64 {
        let course = Course::from_words(self.keeper.course().words());
        let before = self.latest.get();
        let line = never_back(&self.latest, course.now(|| self.ticks, || self.monotonic));
        assert!(line >= before, "{line} after {before}");
        line
    }

    /// A check; the line has no step there.
    fn check(&mut self) {
        let before = self.read();
        self.keeper.check(self.reading()).unwrap();
        assert_eq!(self.read(), before);
    }

    /// A check that gives the counter up.
    fn doubt(&mut self) -> Doubt {
        let doubt = self.keeper.check(self.reading()).unwrap_err();
        assert!(matches!(self.keeper.course(), Course::Monotonic { .. }));
        doubt
    }

    fn off(&self) -> u64 {
        self.read().abs_diff(self.monotonic)
    }

    /// The thread's line runs as the monotonic clock does.
    fn runs_with_monotonic(&mut self) {
        let (line, monotonic) = (self.read(), self.monotonic);
        // Whatever the counter does.
        self.run(SECOND, 300_000);
        self.ticks = 3;
        self.run(SECOND, -300_000);
        assert_eq!(self.read() - line, self.monotonic - monotonic);
        assert_eq!(self.keeper.check(self.reading()), Ok(()));
    }
}

#[test]
fn a_counter_that_was_calibrated_badly_is_steered_to_the_monotonic_clock() {
    for ppm in [-500, -50, -1, 0, 1, 50, 500] {
        let mut machine = Machine::start();
        for second in 0..3_600 {
            machine.run(SECOND, ppm);
            assert!(machine.off() < MILLISECOND, "{ppm} ppm: {}", machine.off());
            if second > 60 {
                assert!(machine.off() < 100, "{ppm} ppm: {}", machine.off());
            }
            machine.check();
        }
    }
}

#[test]
fn a_monotonic_clock_that_the_kernel_steers_is_kept_to() {
    let mut machine = Machine::start();
    for minute in 0..60 {
        let ppm = [0, 500, 0, -500][minute % 4];
        for _ in 0..60 {
            machine.run(SECOND, ppm);
            machine.check();
            assert!(machine.off() < MILLISECOND, "{}", machine.off());
        }
    }
    // From end to end of what it may.
    for minute in 0..60 {
        for _ in 0..60 {
            machine.run(SECOND, [500, -500][minute % 2]);
            machine.check();
            assert!(machine.off() < 2 * MILLISECOND, "{}", machine.off());
        }
    }
}

#[test]
fn checks_at_odd_times_do_not_overshoot() {
    let mut machine = Machine::start();
    for round in 0..10_000 {
        let pause = [1, 100, 3_000, 20, 60_000, 200, 1_000, 9_000][round % 8];
        machine.run(pause * MILLISECOND, 20);
        machine.check();
        if round > 100 {
            assert!(machine.off() < 1_000, "round {round}: {}", machine.off());
        }
    }
}

#[test]
fn a_check_right_after_another_and_one_of_an_interrupted_thread_change_nothing() {
    let mut machine = Machine::start();
    machine.run(SECOND, 20);
    machine.check();
    let course = machine.keeper.course();
    machine.run(50 * MILLISECOND, 20);
    machine.check();
    assert_eq!(machine.keeper.course(), course);
    machine.run(SECOND, 20);
    let interrupted = Reading {
        monotonic: machine.monotonic + 3 * MILLISECOND,
        apart: 6 * MILLISECOND,
        ..machine.reading()
    };
    assert_eq!(machine.keeper.check(interrupted), Ok(()));
    assert_eq!(machine.keeper.course(), course);
}

#[test]
fn without_checks_the_line_is_off_by_the_error_of_calibration_only() {
    let mut machine = Machine::start();
    for _ in 0..3_600 {
        machine.run(SECOND, 20);
    }
    let expected = 3_600 * 20_000;
    assert!(
        machine.off().abs_diff(expected) < 2_000,
        "{}",
        machine.off()
    );
    // And a check that comes at last does not take that for a jump.
    machine.check();
    machine.run(3_600 * SECOND, 20);
    assert!(machine.off() < 10_000, "{}", machine.off());
}

#[test]
fn a_counter_that_jumped_ahead_is_given_up_and_the_line_goes_on_from_there() {
    let mut machine = Machine::start();
    machine.run(SECOND, 20);
    machine.check();
    machine.ticks += 3_600 * SECOND * TICKS / 10;
    let line = machine.read();
    machine.run(SECOND, 20);
    let doubt = machine.doubt();
    assert!(matches!(doubt, Doubt::Apart { ahead: true, .. }), "{doubt}");
    assert!(machine.read() > line);
    assert!(machine.off().abs_diff(3_600 * SECOND) < SECOND);
    machine.runs_with_monotonic();
}

#[test]
fn a_counter_that_was_reset_is_given_up_and_the_line_steps_to_the_monotonic_clock() {
    for ticks in [0, 78 * SECOND] {
        let mut machine = Machine::start();
        machine.run(10 * SECOND, 0);
        machine.check();
        machine.run(SECOND / 2, 0);
        // The thread is told the same until the check.
        machine.ticks = ticks;
        machine.run(SECOND / 2, 0);
        let doubt = machine.doubt();
        assert!(
            matches!(doubt, Doubt::Apart { ahead: false, .. }),
            "{doubt}"
        );
        assert_eq!(machine.read(), machine.monotonic);
        machine.runs_with_monotonic();
    }
}

#[test]
fn a_counter_that_stood_still_or_changed_its_rate_is_given_up() {
    for ppm in [-1_000_000, -500_000, -5_000, 5_000, 1_000_000] {
        let mut machine = Machine::start();
        machine.run(SECOND, 0);
        machine.check();
        machine.run(SECOND, ppm);
        let doubt = machine.doubt();
        assert!(
            matches!(doubt, Doubt::Apart { ahead, .. } if ahead == (ppm > 0)),
            "{doubt}"
        );
        if ppm < 0 {
            assert_eq!(machine.read(), machine.monotonic);
        }
        machine.runs_with_monotonic();
    }
}

#[test]
fn a_counter_that_the_kernel_gives_up_is_given_up_where_it_is() {
    let mut machine = Machine::start();
    machine.run(SECOND, 20);
    let line = machine.read();
    machine.keeper.give_up(machine.reading());
    assert_eq!(machine.read(), line);
    machine.runs_with_monotonic();
}

#[test]
fn doubts_are_told() {
    let apart = Doubt::Apart {
        ahead: false,
        off: Span::from_millis(1_500),
        passed: Span::from_millis(1_001),
    };
    assert_eq!(
        apart.to_string(),
        "it is 1.5s behind the monotonic clock, 1.001s after they agreed"
    );
    let kernel = Doubt::Kernel("hpet".to_owned());
    assert_eq!(
        kernel.to_string(),
        "the kernel's clock source is \"hpet\" now"
    );
}

#[test]
fn a_piece_begins_where_it_begins_and_ends_with_time() {
    let piece = Piece {
        from: 100,
        at: 7,
        rate: 1 << (RATE_BITS - 1),
    };
    assert_eq!(piece.at(0), 7);
    assert_eq!(piece.at(104), 9);
    let fast = Piece {
        rate: u64::MAX,
        ..piece
    };
    assert_eq!(fast.at(u64::MAX), u64::MAX);
}
