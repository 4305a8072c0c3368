//! What happened, counted: per limit and for the whole book.

use crate::{
    algorithm::concurrency::law::Reason,
    model::{
        lease::{Cause, Decision, EndedBy, Outcome, ReleaseStatus},
        time::Span,
    },
    store::lease::ask::Answer,
};

/// Counts since the book was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Decisions: label and number.
    pub decisions: Tally,
    /// Refusals by cause.
    pub refusals: Tally,
    /// Releases by status; those of leases that ended by release also by outcome.
    pub releases: Tally,
    /// Released leases by outcome.
    pub outcomes: Tally,
    /// Leases by the way they ended.
    pub ends: Tally,
    /// Changes of an adaptive limit by reason.
    pub changes: Tally,
    /// Items that were short and only looked on.
    pub shadow_refused: u64,
    /// Releases that came before their acquire.
    pub early_releases: u64,
    /// Releases that followed a refusal.
    pub refused_releases: u64,
    /// Grants whose answer never left.
    pub cancelled: u64,
    /// Leases whose TTL was cut because the connections of their peer were gone.
    pub cut_short: u64,
    /// Requests that began to wait.
    pub waited: u64,
    /// Refused requests that came back.
    pub returned: u64,
    /// Holds of leases that were given back.
    pub hold: Times,
    /// Waits of requests that waited, granted or not.
    pub wait: Times,
    /// When refused requests were told to come back.
    pub hint: Times,
    /// How much later than told they came.
    pub hint_error: Times,
    /// How late releases of expired leases came; counted for the whole book only.
    pub late_release: Times,
    /// How long after its expiry a lease was seen to have expired.
    pub sweep_lag: Times,
}

/// Times that were seen, by size: for the metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    cells: [u64; Times::BOUNDS.len() + 1],
    sum: f64,
}

impl Times {
    /// Upper bounds in seconds. Below zero only an early return is: who was told to come back
    /// later and found a permit.
    pub const BOUNDS: [f64; 18] = [
        -10.0, -1.0, -0.1, 0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
        30.0, 60.0, 600.0,
    ];

    pub(super) fn see(&mut self, seconds: f64) {
        let cell = Self::BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(cell) = self.cells.get_mut(cell) {
            *cell += 1;
        }
        self.sum += seconds;
    }

    /// Upper bounds with the number of times at or below each.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut count = 0;
        Self::BOUNDS
            .into_iter()
            .zip(self.cells)
            .map(move |(bound, cell)| {
                count += cell;
                (bound, count)
            })
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.cells.iter().sum()
    }

    /// All together, in seconds.
    pub const fn sum(&self) -> f64 {
        self.sum
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            cells: [0; Self::BOUNDS.len() + 1],
            sum: 0.0,
        }
    }
}

/// Counts by a label from a small closed set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(Vec<(&'static str, u64)>);

impl Tally {
    pub(super) fn add(&mut self, label: &'static str) {
        match self.0.iter_mut().find(|(known, _)| *known == label) {
            Some((_, count)) => *count += 1,
            None => self.0.push((label, 1)),
        }
    }

    /// The count of a label.
    pub fn get(&self, label: &str) -> u64 {
        let found = self.0.iter().find(|(known, _)| *known == label);
        found.map_or(0, |(_, count)| *count)
    }

    /// Labels that were counted at least once.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().copied()
    }
}

impl Counts {
    /// A decision; `cause` if it refused here.
    pub(super) fn decided(&mut self, answer: &Answer, cause: Option<Cause>) {
        let decision = answer.decision;
        self.decisions.add(decision.label());
        if !answer.waited.is_zero() {
            self.wait.see(answer.waited.as_secs_f64());
        }
        if let (Decision::Refused, Some(hint)) = (decision, answer.retry_after) {
            self.hint.see(hint.as_secs_f64());
        }
        if let Some(error) = answer.hint_error {
            self.hint_error.see(error);
        }
        if let Some(cause) = cause {
            self.refusals.add(cause.label());
        }
    }

    pub(super) fn released(&mut self, status: ReleaseStatus, outcome: Outcome) {
        self.releases.add(status.label());
        match status {
            ReleaseStatus::Released { held } => {
                self.outcomes.add(outcome.label());
                self.hold.see(held.as_secs_f64());
            }
            ReleaseStatus::Late { by } => self.late_release.see(by.as_secs_f64()),
            _ => {}
        }
    }

    /// A lease ended; if it expired, that was seen so long afterwards.
    pub(super) fn ended(&mut self, by: EndedBy, lag: Span) {
        self.ends.add(by.label());
        if by == EndedBy::Expired {
            self.sweep_lag.see(lag.as_secs_f64());
        }
    }

    pub(super) fn changed(&mut self, reason: Reason) {
        self.changes.add(reason.label());
    }
}
