//! Everything that the engine shows on the metrics page. Label values come from the rules and from
//! closed sets, never from requests; the reference's own stat paths are bounded where they do.
//!
//! Here are the families of the engine as a whole, in `leases` those of limits on work in flight,
//! whose names and texts are in `tables`.

mod leases;
mod tables;

use prometheus::proto::MetricFamily;

use crate::{
    engine::Engine,
    telemetry::{call::CallStat, family::Family, page},
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
}
