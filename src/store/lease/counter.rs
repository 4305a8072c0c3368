//! One key: its leases, what is known about them, and who waits.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    algorithm::concurrency::{
        hint::{Gate, VirtualQueue},
        law::{Change, Controller, Sample},
        little::{Audit, Flow, HoldMean},
        real::real,
        sizing::queue_for,
    },
    model::{
        key::CounterKey,
        lease::Criticality,
        time::{Span, Timestamp},
    },
    rules::concurrency::ConcurrencyRule,
    store::lease::{fairness::Tenants, queue::Queue},
};

/// Most refusals of anonymous requests that are remembered per key.
const MOST_GHOSTS: usize = 10_000;

/// Part of a permit that does not count: promises are times, and rounded.
const HAIR: f64 = 1e-4;

/// Leases that are looked at, at most, for the bound of a hint.
const BOUND_STEPS: usize = 1_024;

/// State of one key.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) rule: Arc<ConcurrencyRule>,
    /// Index of the statistics of the limit.
    pub(super) stats: usize,
    /// Sum of `leases`.
    pub(super) in_flight: u64,
    /// Permits by expiry and sequence of their lease.
    pub(super) leases: BTreeMap<(Timestamp, u64), u64>,
    /// Sequences of leases without a name, oldest first.
    pub(super) anonymous: BTreeSet<u64>,
    /// Ended leases that are remembered here: when that was noticed, and their sequence.
    pub(super) ended: VecDeque<(Timestamp, u64)>,
    /// Until when each refusal of an anonymous request is remembered.
    ghosts: VecDeque<Timestamp>,
    pub(super) queue: Queue,
    pub(super) promised: VirtualQueue,
    pub(super) tenants: Option<Tenants>,
    pub(super) controller: Controller,
    pub(super) flow: Flow,
    pub(super) audit: Audit,
    hold: HoldMean,
    /// Mean cost of its work, see [`crate::algorithm::concurrency::weight`]; none before any.
    pub(super) cost: Option<f64>,
    /// A hold was seen: the prior no longer matters.
    seen: bool,
    /// The latest request.
    pub(super) used: Timestamp,
}

impl Counter {
    pub(super) fn new(rule: Arc<ConcurrencyRule>, stats: usize, now: Timestamp) -> Self {
        let estimates = rule.estimates;
        Self {
            stats,
            in_flight: 0,
            leases: BTreeMap::new(),
            anonymous: BTreeSet::new(),
            ended: VecDeque::new(),
            ghosts: VecDeque::new(),
            queue: Queue::default(),
            promised: VirtualQueue::default(),
            tenants: tenants(&rule, now),
            controller: Controller::new(rule.limit, rule.window, now),
            flow: Flow::new(estimates.memory, now),
            audit: Audit::new(now),
            hold: HoldMean::new(estimates.prior_hold.as_secs_f64(), estimates.alpha),
            cost: None,
            seen: false,
            used: now,
            rule,
        }
    }

    /// Takes over another version of the rule: what is in flight and known stays.
    pub(super) fn follow(&mut self, rule: &Arc<ConcurrencyRule>, now: Timestamp) {
        if Arc::ptr_eq(&self.rule, rule) {
            return;
        }
        let before = std::mem::replace(&mut self.rule, Arc::clone(rule));
        if before.limit != rule.limit || before.window != rule.window {
            self.controller = Controller::new(rule.limit, rule.window, now);
        }
        if before.estimates != rule.estimates {
            let mean = if self.seen {
                self.hold.mean()
            } else {
                rule.estimates.prior_hold.as_secs_f64()
            };
            self.hold = HoldMean::new(mean, rule.estimates.alpha);
            self.flow = Flow::new(rule.estimates.memory, now);
        }
        if before.waiting.under_share_wait.is_some() != rule.waiting.under_share_wait.is_some() {
            self.tenants = tenants(rule, now);
        }
    }

    /// Estimates back to where they started; leases stay.
    pub(super) fn reset(&mut self, now: Timestamp) {
        let rule = Arc::clone(&self.rule);
        self.hold = HoldMean::new(
            rule.estimates.prior_hold.as_secs_f64(),
            rule.estimates.alpha,
        );
        self.seen = false;
        self.flow = Flow::new(rule.estimates.memory, now);
        self.promised = VirtualQueue::default();
        self.controller = Controller::new(rule.limit, rule.window, now);
    }

    /// Brings the estimates to `now`. Before anything changes that they count.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.flow.advance(self.in_flight, now);
        self.audit.advance(self.in_flight, now);
    }

    pub(super) fn limit(&self) -> u64 {
        self.controller.limit()
    }

    /// Permits that a class may fill.
    pub(super) fn allowed(&self, class: Criticality, cohort: Option<u8>) -> u64 {
        self.rule.shedding.allowed(self.limit(), class, cohort)
    }

    /// Adds a lease. The estimates are at `now`.
    pub(super) fn take(
        &mut self,
        sequence: u64,
        expires: Timestamp,
        permits: u64,
        tenant: Option<CounterKey>,
    ) {
        self.leases.insert((expires, sequence), permits);
        self.in_flight += permits;
        if let (Some(tenants), Some(tenant)) = (&mut self.tenants, tenant) {
            tenants.take(tenant, permits);
        }
    }

    /// Removes a lease that was counted since `granted`. `completed` is false when it is undone.
    pub(super) fn give_back(
        &mut self,
        (expires, sequence): (Timestamp, u64),
        granted: Timestamp,
        at: Timestamp,
        tenant: Option<CounterKey>,
        completed: bool,
    ) {
        self.touch(at);
        let Some(permits) = self.leases.remove(&(expires, sequence)) else {
            return;
        };
        self.in_flight = self.in_flight.saturating_sub(permits);
        self.anonymous.remove(&sequence);
        self.audit.complete(permits, at.since(granted));
        if completed {
            self.flow.complete(permits);
        }
        if let (Some(tenants), Some(tenant)) = (&mut self.tenants, tenant) {
            tenants.give_back(tenant, permits);
        }
    }

    /// Moves a lease to another expiry.
    pub(super) fn renew(&mut self, sequence: u64, from: Timestamp, to: Timestamp) {
        if let Some(permits) = self.leases.remove(&(from, sequence)) {
            self.leases.insert((to, sequence), permits);
        }
    }

    /// A lease was released with success after `hold`.
    pub(super) fn learn(&mut self, hold: Span) {
        self.hold.feed(hold.as_secs_f64());
        self.seen = true;
    }

    /// A finished request for the law that adapts the limit.
    pub(super) fn finished(&mut self, sample: Sample, now: Timestamp) -> Option<Change> {
        self.controller.finished(sample, now)
    }

    /// What a caller expects, as long as nothing was seen.
    pub(super) fn expect(&mut self, hold: Span) {
        if !self.seen {
            let hold = hold.min(self.rule.max_lifetime).as_secs_f64();
            self.hold = HoldMean::new(hold.max(1e-3), self.rule.estimates.alpha);
        }
    }

    /// Mean of the finished holds, in seconds.
    pub(super) fn finished_hold(&self) -> f64 {
        self.hold.mean()
    }

    /// Mean hold as hints see it: of finished leases, or more when those still held say so.
    pub(super) fn mean_hold(&self) -> f64 {
        let finished = self.hold.mean();
        if !self.rule.estimates.exposure {
            return finished;
        }
        let unit = real(self.in_flight) / real(self.leases.len().max(1) as u64);
        let exposed = self.flow.mean_hold(unit.max(1.0));
        exposed.map_or(finished, |exposed| exposed.max(finished))
    }

    /// Mean hold for shares: what the recent past says and nothing else, because a hint may err on
    /// the long side and a share must not.
    pub(super) fn recent_hold(&self) -> f64 {
        self.flow.mean_hold(1.0).unwrap_or_else(|| self.hold.mean())
    }

    pub(super) fn gate(&self) -> Gate {
        Gate {
            limit: self.limit(),
            hold: self.mean_hold(),
        }
    }

    /// Seconds until `permits` more may be had below `allowed`, by Little's law, bounded by the
    /// expiry of what is out.
    pub(super) fn hint(&self, permits: u64, allowed: u64, now: Timestamp) -> f64 {
        if self.limit() == 0 {
            return self.rule.hints.when_drained.as_secs_f64();
        }
        let gate = self.gate();
        let promised = if self.rule.hints.booking {
            self.promised.reserved(gate, now)
        } else {
            0.0
        };
        let missing = self.missing(gate, promised, permits, allowed);
        let wait = missing * gate.pace();
        let first = self.leases.first_key_value();
        let first = first.map(|((expires, _), _)| expires.since(now).as_secs_f64());
        // More than is out cannot come back by expiry alone.
        let unbounded = missing > real(self.in_flight) + HAIR;
        if unbounded || first.is_none_or(|first| wait <= first) {
            return wait;
        }
        self.expiry_bound(missing, now)
            .map_or(wait, |bound| wait.min(bound))
    }

    /// Seconds in the queue until `permits` may be had: as the hint, but promises to callers that
    /// are not here hold no permit.
    pub(super) fn queue_wait(&self, permits: u64, allowed: u64) -> f64 {
        let gate = self.gate();
        self.missing(gate, 0.0, permits, allowed) * gate.pace()
    }

    /// Permits that must come back first; at least one.
    fn missing(&self, gate: Gate, promised: f64, permits: u64, allowed: u64) -> f64 {
        // Against what this class may fill, at the pace of the whole limit.
        let kept = real(self.limit().saturating_sub(allowed));
        let ahead = promised + kept + real(self.queue.permits());
        gate.missing(self.in_flight, ahead, permits).max(1.0)
    }

    /// Seconds until `missing` permits have come back by expiry alone.
    fn expiry_bound(&self, missing: f64, now: Timestamp) -> Option<f64> {
        let mut back = 0;
        for ((expires, _), permits) in self.leases.iter().take(BOUND_STEPS) {
            back += permits;
            if real(back) + HAIR >= missing {
                return Some(expires.since(now).as_secs_f64());
            }
        }
        None
    }

    /// Most requests that may wait here.
    pub(super) fn queue_bound(&self) -> u64 {
        let most = self.rule.waiting.max_waiters;
        self.rule.waiting.queue_target.map_or(most, |target| {
            most.min(queue_for(
                self.limit(),
                self.mean_hold(),
                target.as_secs_f64(),
            ))
        })
    }

    /// Remembers the refusal of an anonymous request until then.
    pub(super) fn add_ghost(&mut self, until: Timestamp) {
        if self.ghosts.len() >= MOST_GHOSTS {
            self.ghosts.pop_front();
        }
        self.ghosts.push_back(until);
    }

    /// A release came: whether it belongs to a refusal.
    pub(super) fn take_ghost(&mut self, now: Timestamp) -> bool {
        while let Some(until) = self.ghosts.pop_front() {
            if until > now {
                return true;
            }
        }
        false
    }

    pub(super) fn ghosts(&self, now: Timestamp) -> usize {
        self.ghosts.iter().filter(|until| **until > now).count()
    }

    /// Whether forgetting it would change no answer but estimates.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.leases.is_empty()
            && self.queue.is_empty()
            && self.promised.reserved(self.gate(), now) <= 0.0
            && self.ghosts.back().is_none_or(|until| *until <= now)
    }
}

fn tenants(rule: &ConcurrencyRule, now: Timestamp) -> Option<Tenants> {
    rule.waiting.under_share_wait.map(|_| Tenants::new(now))
}
