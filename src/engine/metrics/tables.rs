//! What is told of each limit on work in flight: name, help, and where the number is.

use crate::store::lease::{Counts, LimitView, Times};

pub(super) type Gauge = (&'static str, &'static str, fn(&LimitView) -> f64);

pub(super) type Total = (&'static str, &'static str, fn(&LimitView) -> u64);
type Counted = Vec<(&'static str, u64)>;
pub(super) type Tallied = (
    &'static str,
    &'static str,
    &'static str,
    fn(&LimitView) -> Counted,
);

pub(super) type Timed = (&'static str, &'static str, fn(&Counts) -> &Times);

#[expect(
    clippy::cast_precision_loss,
    reason = "the text format knows doubles only"
)]
pub(super) const GAUGES: &[Gauge] = &[
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

/// Of limits in the shared store. Every replica tells what is true of the whole fleet: sums over
/// replicas would be wrong, so these have names of their own.
#[expect(
    clippy::cast_precision_loss,
    reason = "the text format knows doubles only"
)]
pub(super) const SHARED_GAUGES: &[Gauge] = &[
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

pub(super) const TOTALS: &[Total] = &[
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

pub(super) const TALLIES: &[Tallied] = &[
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

pub(super) const TIMES: &[Timed] = &[
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
