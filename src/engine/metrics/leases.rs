//! Limits on work in flight: in the books of this process, and in the shared store.

use prometheus::proto::MetricFamily;

use super::tables::{GAUGES, SHARED_GAUGES, TALLIES, TIMES, TOTALS};
use crate::{
    engine::Engine,
    store::lease::Times,
    telemetry::family::{Family, Labels},
};

impl Engine {
    pub(super) fn lease_families(&self) -> Vec<MetricFamily> {
        let mut gauges: Vec<Family> = GAUGES
            .iter()
            .map(|(name, help, _)| Family::gauge(name, help))
            .collect();
        let mut totals: Vec<Family> = TOTALS
            .iter()
            .map(|(name, help, _)| Family::counter(name, help))
            .collect();
        let mut tallies: Vec<Family> = TALLIES
            .iter()
            .map(|(name, help, ..)| Family::counter(name, help))
            .collect();
        for (domain, limits) in self.leases.limits(self.clock.now()) {
            for limit in &limits {
                let labels = [("domain", &*domain), ("limit", &*limit.path)];
                for (family, (.., value)) in gauges.iter_mut().zip(GAUGES) {
                    family.add(&labels, value(limit));
                }
                for (family, (.., value)) in totals.iter_mut().zip(TOTALS) {
                    family.count(&labels, value(limit));
                }
                for (family, (.., label, tally)) in tallies.iter_mut().zip(TALLIES) {
                    for (value, count) in tally(limit) {
                        family.count(&[labels[0], labels[1], (*label, value)], count);
                    }
                }
            }
        }
        let all = gauges.into_iter().chain(totals).chain(tallies);
        let mut all: Vec<MetricFamily> = all.filter_map(Family::finish).collect();
        all.extend(self.hold_families());
        all.extend(self.book_families());
        all
    }

    /// Limits in the shared store, as they stood lately.
    pub(super) fn shared_lease_families(&self) -> Vec<MetricFamily> {
        let mut gauges: Vec<Family> = SHARED_GAUGES
            .iter()
            .map(|(name, help, _)| Family::gauge(name, help))
            .collect();
        for (domain, limits) in self.leases.shared_limits() {
            for limit in &limits {
                let labels = [("domain", &*domain), ("limit", &*limit.path)];
                for (family, (.., value)) in gauges.iter_mut().zip(SHARED_GAUGES) {
                    family.add(&labels, value(limit));
                }
            }
        }
        gauges.into_iter().filter_map(Family::finish).collect()
    }

    /// Histograms of each limit.
    fn hold_families(&self) -> impl Iterator<Item = MetricFamily> {
        let mut families: Vec<Family> = TIMES
            .iter()
            .map(|(name, help, _)| Family::histogram(name, help))
            .collect();
        for (domain, limits) in self.leases.limits(self.clock.now()) {
            for limit in &limits {
                let labels = [("domain", &*domain), ("limit", &*limit.path)];
                for (family, (.., times)) in families.iter_mut().zip(TIMES) {
                    add_times(family, &labels, times(&limit.counts));
                }
            }
        }
        families.into_iter().filter_map(Family::finish)
    }

    /// What is known of a domain as a whole: many a release names no limit any more.
    fn book_families(&self) -> impl Iterator<Item = MetricFamily> {
        let mut releases = Family::counter(
            "porteiro_concurrency_releases_total",
            "Releases by what they were answered",
        );
        let mut late = Family::histogram(
            "porteiro_concurrency_late_release_seconds",
            "How late releases of expired leases came",
        );
        let mut sessions = Family::gauge("porteiro_concurrency_sessions", "Open sessions");
        let mut boot = Family::gauge(
            "porteiro_concurrency_boot",
            "The life of this process, as lease ids tell it",
        );
        let totals = self.leases.totals(self.clock.now());
        if !totals.is_empty() {
            boot.count(&[], self.leases.boot().into());
        }
        for (domain, counts, open) in totals {
            let labels = [("domain", &*domain)];
            sessions.count(&labels, open);
            add_times(&mut late, &labels, &counts.late_release);
            for (status, count) in counts.releases.iter() {
                releases.count(&[labels[0], ("status", status)], count);
            }
        }
        let families = [releases, late, sessions, boot].into_iter();
        families.filter_map(Family::finish)
    }
}

fn add_times(family: &mut Family, labels: Labels<'_>, times: &Times) {
    if times.count() > 0 {
        family.spread(labels, times.cumulative(), times.count(), times.sum());
    }
}
