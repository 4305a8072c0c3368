//! Everything that the engine shows on the metrics page. Label values come from the rules and from
//! closed sets, never from requests; the reference's own stat paths are bounded where they do.

use prometheus::proto::MetricFamily;

use crate::{
    engine::Engine,
    store::lease::{Counts, LimitView, Times},
    telemetry::{
        call::CallStat,
        family::{Family, Labels},
        page,
    },
};

impl Engine {
    /// All families: the reference's, and ours under `porteiro_`.
    pub fn metrics(&self) -> Vec<MetricFamily> {
        let mut families = page::reference_families(&self.paths, &self.calls, &self.latency);
        families.extend(self.name_families());
        families.extend(self.decision_families());
        families.extend(self.memory_families());
        families.extend(self.state_families());
        families.extend(self.shared_families());
        families.extend(self.lease_families());
        families.extend(self.shared_lease_families());
        families
    }

    /// How many stat paths there are that requests have named.
    fn name_families(&self) -> impl Iterator<Item = MetricFamily> {
        let names = self.paths.names();
        let mut count = Family::gauge(
            "porteiro_stat_paths",
            "Stat paths with texts of requests in them",
        );
        count.count(&[], names.len() as u64);
        let mut max = Family::gauge(
            "porteiro_stat_paths_max",
            "Most of them; the rest is counted under DOMAIN.other",
        );
        max.count(&[], self.options.max_stat_paths as u64);
        let mut replaced = Family::counter(
            "porteiro_stat_paths_replaced_total",
            "Times that one of them gave way to one with more traffic",
        );
        replaced.count(&[], names.replaced());
        let families = [count.finish(), max.finish(), replaced.finish()];
        families.into_iter().flatten()
    }

    fn decision_families(&self) -> impl Iterator<Item = MetricFamily> {
        let mut decisions = Family::counter("porteiro_decisions_total", "Decided requests");
        for (decision, stat) in [("pass", CallStat::Passed), ("refuse", CallStat::Refused)] {
            decisions.count(&[("decision", decision)], self.calls.sum(stat));
        }
        let mut refusals = Family::counter(
            "porteiro_refusals_total",
            "Refused requests by the rule that refused and why; no rule: a limit of the request, or \
             the store is away. Also those that global shadow mode let pass",
        );
        self.refusals.for_each(|rule, reason, count| {
            refusals.count(&[("rule", rule), ("reason", reason.name())], count);
        });
        let latency = page::histogram(
            "porteiro_decision_seconds",
            "Time from a request's instant to its verdict, of one request in eight",
            &[],
            self.decision_latency.snapshot(),
        );
        let families = [decisions.finish(), refusals.finish(), latency];
        families.into_iter().flatten()
    }

    fn memory_families(&self) -> Vec<MetricFamily> {
        let memory = self.store.memory();
        let mut gauges = Vec::new();
        for (name, help, value) in [
            ("porteiro_store_keys", "Counters in memory", memory.len()),
            (
                "porteiro_store_keys_max",
                "Most counters in memory",
                memory.max_keys(),
            ),
            (
                "porteiro_store_bytes",
                "Memory of counters, with the entries of sliding logs",
                memory.bytes(),
            ),
            (
                "porteiro_store_bytes_max",
                "Most memory for counters",
                memory.max_bytes(),
            ),
        ] {
            let mut gauge = Family::gauge(name, help);
            gauge.count(&[], value as u64);
            gauges.push(gauge);
        }
        for (name, help, value) in [
            (
                "porteiro_store_evicted_total",
                "Live counters that gave way to others for want of room",
                memory.evicted(),
            ),
            (
                "porteiro_store_roomless_total",
                "Requests answered without a counter for want of room",
                memory.roomless(),
            ),
        ] {
            let mut counter = Family::counter(name, help);
            counter.count(&[], value);
            gauges.push(counter);
        }
        gauges.into_iter().filter_map(Family::finish).collect()
    }

    /// How the state file stands; nothing when none is kept.
    fn state_families(&self) -> Vec<MetricFamily> {
        let Some((age, bytes, failed)) = self.written.read(self.clock.now().wall) else {
            return Vec::new();
        };
        let mut old = Family::gauge(
            "porteiro_state_age_seconds",
            "Time since the state that the file has: what a kill would lose",
        );
        old.add(&[], age.as_secs_f64());
        let mut size = Family::gauge("porteiro_state_bytes", "Length of the state file");
        size.count(&[], bytes);
        let mut failures = Family::counter(
            "porteiro_state_write_failures_total",
            "Writes of the state file that failed",
        );
        failures.count(&[], failed);
        let families = [old, size, failures].into_iter();
        families.filter_map(Family::finish).collect()
    }

    /// What the shared store tells about itself; nothing without one.
    fn shared_families(&self) -> Vec<MetricFamily> {
        let Some(shared) = self.store.shared() else {
            return Vec::new();
        };
        let snapshot = shared.redis().snapshot();
        let mut events = Family::counter(
            "porteiro_shared_store_events_total",
            "What happened between this process and the shared store",
        );
        for (stat, count) in &snapshot.counts {
            events.count(&[("event", stat.name())], *count);
        }
        let mut errors = Family::counter(
            "porteiro_shared_store_errors_total",
            "Requests that the shared store did not decide, by reason: their answers are degraded",
        );
        for (error, count) in &snapshot.errors {
            errors.count(&[("reason", error.name())], *count);
        }
        let mut waiting = Family::gauge(
            "porteiro_shared_store_waiting",
            "Requests that wait for the shared store",
        );
        waiting.count(&[], snapshot.waiting as u64);
        let mut up = Family::gauge(
            "porteiro_shared_store_up",
            "1 when the latest probe of the shared store got through",
        );
        up.count(&[], u64::from(shared.redis().health().is_up));
        let mut open = Family::gauge(
            "porteiro_shared_store_breaker_open",
            "1 while requests do not even try the shared store",
        );
        open.count(&[], u64::from(snapshot.breaker_open));
        let mut families: Vec<MetricFamily> = [events, errors, waiting, up, open]
            .into_iter()
            .filter_map(Family::finish)
            .collect();
        families.extend(page::histogram(
            "porteiro_shared_store_seconds",
            "How long requests waited for the shared store, decided or not",
            &[],
            snapshot.latency,
        ));
        families
    }

    fn lease_families(&self) -> Vec<MetricFamily> {
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
    fn shared_lease_families(&self) -> Vec<MetricFamily> {
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

type Timed = (&'static str, &'static str, fn(&Counts) -> &Times);

const TIMES: &[Timed] = &[
    (
        "porteiro_concurrency_hold_seconds",
        "Holds of leases that were given back",
        |counts| &counts.hold,
    ),
    (
        "porteiro_concurrency_wait_seconds",
        "Waits of requests that waited in the server",
        |counts| &counts.wait,
    ),
    (
        "porteiro_concurrency_hint_seconds",
        "When refused requests were told to come back",
        |counts| &counts.hint,
    ),
    (
        "porteiro_concurrency_hint_error_seconds",
        "How much later than told refused requests came back",
        |counts| &counts.hint_error,
    ),
    (
        "porteiro_concurrency_sweep_lag_seconds",
        "How long after its expiry a lease was seen to have expired",
        |counts| &counts.sweep_lag,
    ),
];

/// Of limits in the shared store. Every replica tells what is true of the whole fleet: sums over
/// replicas would be wrong, so these have names of their own.
#[expect(
    clippy::cast_precision_loss,
    reason = "the text format knows doubles only"
)]
const SHARED_GAUGES: &[Gauge] = &[
    (
        "porteiro_shared_concurrency_limit",
        "Permits that there are over all replicas, of keys that this one asked for lately",
        |v| v.limit as f64,
    ),
    (
        "porteiro_shared_concurrency_in_flight",
        "Permits of those that are out",
        |v| v.in_flight as f64,
    ),
    (
        "porteiro_shared_concurrency_leases",
        "Live leases of those",
        |v| v.leases as f64,
    ),
    (
        "porteiro_shared_concurrency_waiters",
        "Requests that wait for one of those at this replica",
        |v| v.waiters as f64,
    ),
    (
        "porteiro_shared_concurrency_ghosts",
        "Refusals whose release is still expected",
        |v| v.ghosts as f64,
    ),
    (
        "porteiro_shared_concurrency_lambda_per_second",
        "Permits of those asked for per second",
        |v| v.arrival_rate,
    ),
    (
        "porteiro_shared_concurrency_throughput_per_second",
        "Permits of those given back per second",
        |v| v.throughput,
    ),
    (
        "porteiro_shared_concurrency_w_seconds",
        "Mean hold of a permit",
        |v| v.mean_hold,
    ),
    (
        "porteiro_shared_concurrency_saturation",
        "Mean permits in flight over the limit, of the fullest key",
        |v| v.saturation,
    ),
];

type Gauge = (&'static str, &'static str, fn(&LimitView) -> f64);
type Total = (&'static str, &'static str, fn(&LimitView) -> u64);
type Counted = Vec<(&'static str, u64)>;
type Tallied = (
    &'static str,
    &'static str,
    &'static str,
    fn(&LimitView) -> Counted,
);

#[expect(
    clippy::cast_precision_loss,
    reason = "the text format knows doubles only"
)]
const GAUGES: &[Gauge] = &[
    (
        "porteiro_concurrency_limit",
        "Permits that there are",
        |v| v.limit as f64,
    ),
    (
        "porteiro_concurrency_in_flight",
        "Permits that are out",
        |v| v.in_flight as f64,
    ),
    ("porteiro_concurrency_leases", "Live leases", |v| {
        v.leases as f64
    }),
    (
        "porteiro_concurrency_waiters",
        "Requests that wait for a permit",
        |v| v.waiters as f64,
    ),
    (
        "porteiro_concurrency_reserved_slots",
        "Permits promised to refused callers",
        |v| v.reserved,
    ),
    (
        "porteiro_concurrency_ghosts",
        "Refusals whose release is still expected",
        |v| v.ghosts as f64,
    ),
    (
        "porteiro_concurrency_lambda_per_second",
        "Permits asked for per second",
        |v| v.arrival_rate,
    ),
    (
        "porteiro_concurrency_throughput_per_second",
        "Permits given back per second",
        |v| v.throughput,
    ),
    (
        "porteiro_concurrency_w_seconds",
        "Mean hold of a permit",
        |v| v.mean_hold,
    ),
    ("porteiro_concurrency_l", "Mean permits in flight", |v| {
        v.mean_in_flight
    }),
    (
        "porteiro_concurrency_saturation",
        "Mean permits in flight over the limit, of the fullest key",
        |v| v.saturation,
    ),
    (
        "porteiro_concurrency_refused_ratio_forecast",
        "Share that the Erlang B formula says is refused",
        |v| v.refused_forecast,
    ),
    (
        "porteiro_concurrency_leak_share",
        "Share of ended leases that nobody gave back",
        |v| v.leak_share,
    ),
    (
        "porteiro_concurrency_ttl_advice_seconds",
        "Longest TTL at which leaked leases cost 5 % of the throughput; 0 when none leaks",
        |v| v.ttl_advice.unwrap_or_default(),
    ),
    (
        "porteiro_concurrency_conservation_error_seconds",
        "Audit of Little's law: must be 0",
        |v| v.conservation_error,
    ),
];

const TOTALS: &[Total] = &[
    (
        "porteiro_concurrency_shadow_refused_total",
        "Requests that a shadow limit would have refused",
        |v| v.counts.shadow_refused,
    ),
    (
        "porteiro_concurrency_early_releases_total",
        "Releases that came before their acquire",
        |v| v.counts.early_releases,
    ),
    (
        "porteiro_concurrency_cancelled_acquires_total",
        "Grants undone because their answer never left",
        |v| v.counts.cancelled,
    ),
    (
        "porteiro_concurrency_cut_short_total",
        "Leases cut short because the connections of their proxy were gone",
        |v| v.counts.cut_short,
    ),
    (
        "porteiro_concurrency_waited_total",
        "Requests that began to wait",
        |v| v.counts.waited,
    ),
];

const TALLIES: &[Tallied] = &[
    (
        "porteiro_concurrency_acquires_total",
        "Requests for permits by decision",
        "decision",
        |v| v.counts.decisions.iter().collect(),
    ),
    (
        "porteiro_concurrency_refusals_total",
        "Refused requests by cause",
        "cause",
        |v| v.counts.refusals.iter().collect(),
    ),
    (
        "porteiro_concurrency_lease_ends_total",
        "Leases by the way they ended",
        "by",
        |v| v.counts.ends.iter().collect(),
    ),
    (
        "porteiro_concurrency_outcomes_total",
        "Released leases by outcome",
        "outcome",
        |v| v.counts.outcomes.iter().collect(),
    ),
    (
        "porteiro_concurrency_limit_changes_total",
        "Changes of an adaptive limit by reason",
        "reason",
        |v| v.counts.changes.iter().collect(),
    ),
];
