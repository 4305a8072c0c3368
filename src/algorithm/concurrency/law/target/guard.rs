//! What keeps an unattainable target latency from lowering a limit for ever.

use crate::algorithm::concurrency::{
    law::{Reason, Window},
    real::real,
};

/// Which guard a target controller has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// Above the target the limit is lowered by experiment only: a quarter less for three windows,
    /// kept if throughput did not suffer. Never the best, never bad, at any target.
    #[default]
    Knee,
    /// The limit never falls below what the service was seen to need: the largest throughput
    /// times the smallest latency of the last ten windows. For targets up to about 1.4 × the
    /// service time; with more room for a queue it ratchets upwards.
    Floor,
    /// None: right only when the target stays attainable.
    None,
}

/// Windows that the floor remembers.
const FLOOR_WINDOWS: usize = 10;

/// Throughput and latency of the last ten windows.
#[derive(Clone, Debug, Default)]
pub(super) struct Floor {
    seen: Vec<(f64, f64)>,
    next: usize,
}

impl Floor {
    /// Takes in a window; the floor including it.
    pub(super) fn seen(&mut self, window: &Window) -> f64 {
        let entry = (window.throughput(), window.latency.as_secs_f64());
        if self.seen.len() < FLOOR_WINDOWS {
            self.seen.push(entry);
        } else if let Some(oldest) = self.seen.get_mut(self.next) {
            *oldest = entry;
            self.next = self.next.wrapping_add(1) % FLOOR_WINDOWS;
        }
        let most = self.seen.iter().fold(0.0, |most: f64, (x, _)| most.max(*x));
        let least = self
            .seen
            .iter()
            .fold(f64::INFINITY, |least, (_, w)| least.min(*w));
        most * least
    }
}

/// What the knee guard says of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The law steps.
    Step,
    /// The limit stays, the window is forgotten.
    Hold(Reason),
    /// The limit stays, the window's throughput counts.
    Measure(Reason),
    /// The probe's limit stays for good.
    Lower,
}

/// Windows above the target before a probe starts, and windows of a probe.
const KNEE_WINDOWS: usize = 3;
/// Windows after a probe that cost throughput before the next one.
const PATIENCE: u32 = 10;
/// Latency up to this many times the target is on target.
const DEAD_BAND: f64 = 1.05;
/// What is left of the limit during a probe.
pub(super) const PROBE_PART: f64 = 0.75;
/// Throughput during a probe that counts as undiminished.
const KEPT_PART: f64 = 0.9;

/// State of the knee guard.
#[derive(Clone, Debug, Default)]
pub(super) struct Knee {
    /// Windows in a row that were above the target.
    missed: usize,
    /// Throughputs of the last of them, newest last.
    before: Vec<f64>,
    /// Windows left of the running probe.
    left: usize,
    /// Throughputs of the running probe.
    during: Vec<f64>,
    /// Windows until the next probe may start.
    wait: u32,
    /// The next window is from before the limit changed: ignore it.
    skip: bool,
}

impl Knee {
    /// Whether a probe is running.
    pub(super) const fn probing(&self) -> bool {
        self.left > 0
    }

    pub(super) fn judge(&mut self, window: &Window, limit: f64, target: f64) -> Verdict {
        if self.probing() {
            return self.probe(window);
        }
        if self.skip {
            self.skip = false;
            return Verdict::Hold(Reason::Hold);
        }
        self.wait = self.wait.saturating_sub(1);
        let latency = window.latency.as_secs_f64();
        if latency > DEAD_BAND * target {
            let in_use = 2.0 * real(window.in_flight) >= limit;
            if in_use {
                self.missed = self.missed.saturating_add(1);
                if self.before.len() == KNEE_WINDOWS {
                    self.before.remove(0);
                }
                self.before.push(window.throughput());
            }
            let mut reason = Reason::Hold;
            if self.missed >= KNEE_WINDOWS && self.wait == 0 {
                self.left = KNEE_WINDOWS;
                reason = Reason::Probe;
            }
            return if in_use {
                Verdict::Measure(reason)
            } else {
                Verdict::Hold(reason)
            };
        }
        self.missed = 0;
        self.before.clear();
        if latency >= target {
            Verdict::Measure(Reason::Hold)
        } else {
            Verdict::Step
        }
    }

    fn probe(&mut self, window: &Window) -> Verdict {
        self.during.push(window.throughput());
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Verdict::Hold(Reason::Hold);
        }
        // The first window of the probe only drained the queue.
        let drained = self.during.get(1..).unwrap_or_default();
        let undiminished = mean(drained) >= KEPT_PART * mean(&self.before);
        *self = Self {
            skip: true,
            wait: if undiminished { self.wait } else { PATIENCE },
            ..Self::default()
        };
        if undiminished {
            Verdict::Lower
        } else {
            Verdict::Hold(Reason::ProbeUndone)
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / real(values.len() as u64)
}
