//! The limit from a target latency by Little's law: throughput × target.
//!
//! When the target cannot be reached at any limit (the service alone takes longer), the bare law
//! would lower the limit for ever. A [`Guard`] decides what happens then.

mod guard;

use crate::{
    algorithm::concurrency::{
        law::{Reason, Window},
        real::{real, whole},
    },
    model::time::Span,
};

pub use self::guard::Guard;
use self::guard::{Floor, Knee, PROBE_PART, Verdict};

/// Knobs of [`Target`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetSettings {
    /// Latency to aim at.
    pub target: Span,
    /// Limit at the start.
    pub initial: u64,
    /// Smallest limit.
    pub min: u64,
    /// Largest limit.
    pub max: u64,
    /// What keeps an unattainable target from doing harm.
    pub guard: Guard,
}

impl TargetSettings {
    /// Defaults for a target latency.
    pub const fn new(target: Span) -> Self {
        Self {
            target,
            initial: 20,
            min: 2,
            max: 200,
            guard: Guard::Knee,
        }
    }
}

/// Share of dropped requests in a window, as 1/n, above which it counts as bad whatever its
/// latency: fast failures must not look like a fast service.
const DROPPED_PART: u64 = 10;

/// With throughput X (smoothed) and target T, one step per window moves half way to X·T; while the
/// latency is below T the limit never falls, and grows by at least √C/4 when it was reached.
///
/// With a tenth or more of the requests dropped the limit falls by a tenth instead.
#[derive(Clone, Debug)]
pub struct Target {
    settings: TargetSettings,
    limit: f64,
    throughput: Option<f64>,
    guard: State,
}

#[derive(Clone, Debug)]
enum State {
    None,
    Floor(Floor),
    Knee(Knee),
}

impl Target {
    /// At the initial limit.
    pub fn new(settings: TargetSettings) -> Self {
        Self {
            settings,
            limit: real(settings.initial.min(settings.max).max(settings.min)),
            throughput: None,
            guard: match settings.guard {
                Guard::None => State::None,
                Guard::Floor => State::Floor(Floor::default()),
                Guard::Knee => State::Knee(Knee::default()),
            },
        }
    }

    /// The limit to enforce; lower than [`Target::value`] while the knee guard probes.
    pub fn limit(&self) -> u64 {
        match &self.guard {
            State::Knee(knee) if knee.probing() => {
                whole(PROBE_PART * self.limit).max(self.settings.min)
            }
            _ => whole(self.limit),
        }
    }

    /// The limit as a real number.
    pub const fn value(&self) -> f64 {
        self.limit
    }

    /// One step.
    pub fn step(&mut self, window: &Window) -> Reason {
        if window.dropped > 0 && window.dropped.saturating_mul(DROPPED_PART) >= window.samples {
            if let State::Knee(knee) = &mut self.guard {
                *knee = Knee::default();
            }
            self.set(0.9 * self.limit);
            return Reason::Drops;
        }
        let target = self.settings.target.as_secs_f64();
        let verdict = match &mut self.guard {
            State::Knee(knee) => knee.judge(window, self.limit, target),
            _ => Verdict::Step,
        };
        match verdict {
            Verdict::Step => {}
            Verdict::Hold(reason) => return reason,
            Verdict::Measure(reason) => {
                self.measure(window);
                return reason;
            }
            Verdict::Lower => {
                self.set(PROBE_PART * self.limit);
                return Reason::ProbeKept;
            }
        }
        let reason = self.follow(window, target);
        let State::Floor(floor) = &mut self.guard else {
            return reason;
        };
        let floor = floor.seen(window).min(real(self.settings.max));
        if floor > self.limit {
            self.limit = floor;
            return Reason::Floor;
        }
        reason
    }

    /// X ← x, then 0.7·X + 0.3·x.
    fn measure(&mut self, window: &Window) -> f64 {
        let now = window.throughput();
        let throughput = self
            .throughput
            .map_or(now, |before| 0.7 * before + 0.3 * now);
        self.throughput = Some(throughput);
        throughput
    }

    /// The law itself.
    fn follow(&mut self, window: &Window, target: f64) -> Reason {
        let throughput = self.measure(window);
        if 2.0 * real(window.in_flight) < self.limit {
            return Reason::Hold;
        }
        let mut wanted = throughput * target;
        if window.latency.as_secs_f64() < target {
            let reached = real(window.in_flight) >= self.limit - 1.0;
            let more = if reached {
                0.25 * self.limit.sqrt()
            } else {
                0.0
            };
            wanted = wanted.max(self.limit + more);
        }
        let reason = if wanted < self.limit {
            Reason::Slow
        } else {
            Reason::Grow
        };
        self.set(f64::midpoint(self.limit, wanted));
        reason
    }

    fn set(&mut self, limit: f64) {
        self.limit = limit
            .min(real(self.settings.max))
            .max(real(self.settings.min));
    }
}
