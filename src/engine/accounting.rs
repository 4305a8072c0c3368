//! The reference's statistics of one decision: what was total, within, near, over, shadow.

use std::sync::Arc;

use crate::{
    algorithm::Outcome,
    engine::{installed::Installed, options::EngineOptions, permits::Action, resolve::Touched},
    model::request::{Entry, Request},
    rules::{Domain, Stacking, limit::Limit},
    store::{Charge, Charges},
    telemetry::{
        registry::{RuleRegistry, UNKNOWN_DOMAIN},
        rule::{RuleStat, RuleStats},
    },
};

/// Where statistics go.
#[derive(Debug)]
pub struct Accounts<'a> {
    /// Has the counters of static paths.
    pub installed: &'a Installed,
    /// Has the counters of paths that a request determines.
    pub paths: &'a RuleRegistry,
    /// Has the near line.
    pub options: &'a EngineOptions,
}

impl Accounts<'_> {
    /// A request asked for a domain that is not there; counted per descriptor. The name is the
    /// caller's: bounded.
    pub fn domain_not_found(&self, request: &Request<'_>) {
        let descriptors = request.descriptors.len() as u64;
        let stats = self
            .paths
            .of_request(UNKNOWN_DOMAIN, request.domain, descriptors);
        stats.add(RuleStat::DomainNotFound, descriptors);
    }

    /// Counts what the store decided. What would have passed alone but was not taken, because the
    /// request fell as a whole, was asked for and nothing else. `remembered`: see
    /// [`Decided::remembered`](crate::store::Decided::remembered).
    pub fn record(
        &self,
        domain: &Domain,
        request: &Request<'_>,
        resolved: &[Touched<'_>],
        charges: &Charges<'_>,
        outcomes: &[Outcome],
        remembered: bool,
    ) {
        let list = &*charges.list;
        // One alone falls with nobody: it passed, or it was not taken anyway.
        let none_taken = list.len() > 1
            && charges.terms.stacking == Stacking::AllOrNothing
            && charges.are_refused(outcomes);
        for (charge, outcome) in list.iter().zip(outcomes) {
            if charge.refund || charge.cost == 0 {
                continue;
            }
            let moved = if none_taken && outcome.allowed {
                Moved {
                    total: charge.cost,
                    ..Moved::default()
                }
            } else {
                self.moved(charge, outcome)
            };
            self.with_stats_of(domain, request, resolved, charge, |stats| {
                moved.add(stats, charge.shadow);
                if remembered {
                    stats.add(RuleStat::OverLimitWithLocalCache, moved.over);
                }
            });
        }
    }

    /// [`Accounts::record`] for a request of one charge: it falls with nobody.
    #[inline]
    pub fn record_one(
        &self,
        domain: &Domain,
        request: &Request<'_>,
        resolved: &[Touched<'_>],
        charge: &Charge<'_>,
        outcome: &Outcome,
    ) {
        if charge.refund || charge.cost == 0 {
            return;
        }
        let moved = self.moved(charge, outcome);
        self.with_stats_of(domain, request, resolved, charge, |stats| {
            moved.add(stats, charge.shadow);
        });
    }

    #[inline]
    fn moved(&self, charge: &Charge<'_>, outcome: &Outcome) -> Moved {
        Moved::of(
            charge.limit,
            outcome,
            charge.cost,
            self.options.near_limit_ratio,
        )
    }

    #[inline]
    fn with_stats_of(
        &self,
        domain: &Domain,
        request: &Request<'_>,
        resolved: &[Touched<'_>],
        charge: &Charge<'_>,
        add: impl FnOnce(&RuleStats),
    ) {
        let place = charge.descriptor;
        if let (Some(touched), Some(descriptor)) =
            (resolved.get(place), request.descriptors.get(place))
        {
            let entries = || request.entries(descriptor);
            self.with_stats(domain, touched, entries, charge.cost, add);
        }
    }

    /// Counts a request for permits under the names of rate limits: so much was asked for, and it
    /// passed or it did not.
    pub fn record_permits(
        &self,
        domain: &Domain,
        request: &Request<'_>,
        touched: &Touched<'_>,
        descriptor: usize,
        outcome: &Outcome,
    ) {
        let Some(Action::Take(hits)) = touched.permits.as_ref().map(|permits| permits.action)
        else {
            return;
        };
        let Some(descriptor) = request.descriptors.get(descriptor) else {
            return;
        };
        let (within, over) = if outcome.allowed {
            (hits, 0)
        } else {
            (0, hits)
        };
        let moved = Moved {
            total: hits,
            within,
            over,
            near: 0,
        };
        let entries = || request.entries(descriptor);
        self.with_stats(domain, touched, entries, hits, |stats| {
            moved.add(stats, touched.shadow);
        });
    }

    #[inline]
    fn with_stats<'e>(
        &self,
        domain: &Domain,
        touched: &Touched<'_>,
        entries: impl FnOnce() -> &'e [Entry<'e>],
        hits: u64,
        add: impl FnOnce(&RuleStats),
    ) {
        if touched.has_static_path
            && let Some(rule) = touched.rule()
        {
            let stats = self.installed.stats.get(rule.id as usize);
            return stats.map(Arc::as_ref).map_or((), add);
        }
        add(&self.stats_of_request(domain, touched, entries(), hits));
    }

    #[inline(never)]
    fn stats_of_request(
        &self,
        domain: &Domain,
        touched: &Touched<'_>,
        entries: &[Entry<'_>],
        hits: u64,
    ) -> Arc<RuleStats> {
        let matched = touched.rule().and_then(|_| domain.find(entries));
        let path = matched.map_or_else(
            || path_of_entries(&domain.name, entries),
            |matched| matched.stat_path(&domain.name, entries),
        );
        self.paths.of_request(&domain.name, &path, hits)
    }
}

/// The stat path of an override: every entry with its value.
fn path_of_entries(domain: &str, entries: &[Entry<'_>]) -> String {
    let mut path = domain.to_owned();
    for entry in entries {
        path.push('.');
        path.push_str(entry.key);
        if !entry.value.is_empty() {
            path.push('_');
            path.push_str(entry.value);
        }
    }
    path
}

/// How far the statistics of a path move by one charge, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Everything that was asked.
    pub total: u64,
    /// What went over.
    pub over: u64,
    /// What passed, or would have passed, above the near line.
    pub near: u64,
    /// What passed.
    pub within: u64,
}

impl Moved {
    /// With b used before, h asked, a = b + h, L the limit and n the near line: a passed charge is
    /// within, and near as far as it lies above n. A refused one is over as far as it lies above
    /// L; the part of it between n and L is near. One that was refused although it lies below L
    /// (for want of a counter, or together with another charge) is over as a whole.
    pub fn of(limit: &Limit, outcome: &Outcome, hits: u64, near_ratio: f32) -> Self {
        let capacity = limit.capacity();
        let before = outcome.used_before;
        let after = before.saturating_add(hits);
        if outcome.allowed && after <= capacity / 2 && near_ratio >= 0.75 {
            // Far below the line there is no need to know where it is: its floats are slow.
            return Self {
                total: hits,
                within: hits,
                ..Self::default()
            };
        }
        let line = near_line(capacity, near_ratio);
        if outcome.allowed {
            let near = if before >= line {
                hits
            } else {
                after.saturating_sub(line)
            };
            return Self {
                total: hits,
                within: hits,
                near,
                over: 0,
            };
        }
        if before >= capacity {
            return Self {
                total: hits,
                over: hits,
                ..Self::default()
            };
        }
        let over = match after.saturating_sub(capacity) {
            0 => hits,
            over => over,
        };
        let near = (capacity - line.max(before)).min(hits - over);
        Self {
            total: hits,
            over,
            near,
            within: 0,
        }
    }

    fn add(self, stats: &RuleStats, shadow: bool) {
        let shadow = if shadow { self.over } else { 0 };
        stats.add_each([
            (RuleStat::TotalHits, self.total),
            (RuleStat::OverLimit, self.over),
            (RuleStat::NearLimit, self.near),
            (RuleStat::WithinLimit, self.within),
            (RuleStat::ShadowMode, shadow),
        ]);
    }
}

/// floor(limit × ratio) in 32-bit floats, as the reference computes it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the reference's arithmetic, digit for digit"
)]
fn near_line(capacity: u64, ratio: f32) -> u64 {
    ((capacity as f32 * ratio).floor() as u64).min(capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_near_line_is_the_references() {
        assert_eq!(near_line(123_456_789, 0.8), 98_765_432);
        assert_eq!(near_line(1, 0.8), 0);
        assert_eq!(near_line(25, 0.8), 20);
        assert_eq!(near_line(u64::MAX, 1.0), u64::MAX);
        for ratio in [0.75, 0.8, 1.0] {
            for capacity in [1, 2, 3, 5, 16_777_217, 33_554_433, u64::MAX / 2, u64::MAX] {
                assert!(near_line(capacity, ratio) >= capacity / 2);
            }
        }
    }
}
