//! What happened, counted: per limit and for the whole book.

use crate::{
    algorithm::concurrency::law::Reason,
    model::lease::{Cause, Decision, EndedBy, Outcome, ReleaseStatus},
};

/// Counts since the book was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Requests that began to wait.
    pub waited: u64,
    /// Refused requests that came back.
    pub returned: u64,
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
    pub(super) fn decided(&mut self, decision: Decision, cause: Option<Cause>) {
        self.decisions.add(decision.label());
        if let Some(cause) = cause {
            self.refusals.add(cause.label());
        }
    }

    pub(super) fn released(&mut self, status: ReleaseStatus, outcome: Outcome) {
        self.releases.add(status.label());
        if matches!(status, ReleaseStatus::Released { .. }) {
            self.outcomes.add(outcome.label());
        }
    }

    pub(super) fn ended(&mut self, by: EndedBy) {
        self.ends.add(by.label());
    }

    pub(super) fn changed(&mut self, reason: Reason) {
        self.changes.add(reason.label());
    }
}
