//! What a book shows: per key, per limit, per holder. Looking changes nothing.

use std::{cmp::Reverse, sync::Arc};

use crate::{
    algorithm::concurrency::{erlang::blocking, law::Change, real::real, sizing},
    model::{
        key::CounterKey,
        lease::LeaseId,
        time::{Span, Timestamp},
    },
    store::lease::{
        LeaseBook,
        counter::Counter,
        counts::Counts,
        record::{HolderCount, Lease},
        revoke::RevokedBy,
        session::SessionId,
    },
};

/// Loss of throughput by leaked leases that the advised TTL allows.
const TTL_LOSS: f64 = 0.05;
/// Limits up to this size get a forecast: it takes time in proportion.
const MOST_FORECAST: u64 = 100_000;

/// One key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyView {
    /// Permits that there are.
    pub limit: u64,
    /// Permits that are out.
    pub in_flight: u64,
    /// Permits that are left.
    pub remaining: u64,
    /// Live leases.
    pub leases: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// Permits promised to refused callers.
    pub reserved: f64,
    /// Refusals whose release is expected.
    pub ghosts: u64,
    /// Mean hold that hints use, in seconds.
    pub mean_hold: f64,
    /// λ: permits asked for per second.
    pub arrival_rate: f64,
    /// X: permits given back per second.
    pub throughput: f64,
    /// L: mean permits in flight.
    pub mean_in_flight: f64,
    /// The latest change of an adaptive limit.
    pub last_change: Option<Change>,
}

/// One lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseView {
    /// Its id. Whoever knows it can release it: for operators only.
    pub id: LeaseId,
    /// Whose.
    pub holder: Arc<str>,
    /// Which process of theirs.
    pub instance: Arc<str>,
    /// Permits of the key that was looked at.
    pub permits: u64,
    /// Since the grant.
    pub age: Span,
    /// Until its expiry.
    pub expires_in: Span,
    /// It ends with a session.
    pub in_session: bool,
}

/// A limit over all its keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitView {
    /// The path of its rule.
    pub path: Arc<str>,
    /// Keys that are known.
    pub keys: u64,
    /// Permits that there are, over all keys.
    pub limit: u64,
    /// Permits that are out.
    pub in_flight: u64,
    /// Live leases.
    pub leases: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// Permits promised to refused callers.
    pub reserved: f64,
    /// Refusals whose release is expected.
    pub ghosts: u64,
    /// λ: permits asked for per second.
    pub arrival_rate: f64,
    /// X: permits given back per second.
    pub throughput: f64,
    /// L: mean permits in flight.
    pub mean_in_flight: f64,
    /// W = L/X in seconds; the largest estimate of a key while nothing comes back.
    pub mean_hold: f64,
    /// L over the limit: of the fullest key.
    pub saturation: f64,
    /// Share that Erlang B says is refused: of the fullest key.
    pub refused_forecast: f64,
    /// Share of ended leases that nobody gave back.
    pub leak_share: f64,
    /// Longest TTL at which those cost 5 % of the throughput; none when nothing leaks.
    pub ttl_advice: Option<f64>,
    /// Audit of Little's law, in permit-seconds; 0 unless a lease was lost or counted twice.
    pub conservation_error: f64,
    /// What happened.
    pub counts: Counts,
}

impl LeaseBook {
    /// One key as it is at `now`; none when nobody asked for it. Changes nothing.
    pub fn peek(&self, key: CounterKey, now: Timestamp) -> Option<KeyView> {
        let counter = self.counters.get(&key)?;
        let now = now.max(self.now);
        let (live, in_flight) = self.live(counter, now);
        let mut flow = counter.flow;
        flow.advance(counter.in_flight, now);
        let limit = counter.limit();
        Some(KeyView {
            limit,
            in_flight,
            remaining: limit.saturating_sub(in_flight),
            leases: live,
            waiters: counter.queue.len(),
            reserved: counter.promised.reserved(counter.gate(), now),
            ghosts: counter.ghosts(now) as u64,
            mean_hold: counter.mean_hold(),
            arrival_rate: flow.arrival_rate(),
            throughput: flow.throughput(),
            mean_in_flight: flow.mean_in_flight(),
            last_change: counter.controller.last_change().copied(),
        })
    }

    /// Leases and permits that are out at `now`, whether or not ends were noticed.
    fn live(&self, counter: &Counter, now: Timestamp) -> (u64, u64) {
        let noticed = self.sessions.next_end().is_none_or(|(ends, _)| ends > now);
        let mut live = (counter.leases.len() as u64, counter.in_flight);
        for ((expires, sequence), permits) in &counter.leases {
            if noticed && *expires > now {
                break;
            }
            let session = self.records.get(*sequence).and_then(|lease| lease.session);
            if *expires <= now || self.sessions.is_over(session, now) {
                live = (live.0.saturating_sub(1), live.1.saturating_sub(*permits));
            }
        }
        live
    }

    /// Mean of the finished holds of a key, in seconds.
    pub fn finished_hold(&self, key: CounterKey) -> Option<f64> {
        self.counters.get(&key).map(Counter::finished_hold)
    }

    /// Live leases of a key that end soonest, at most `most`. Changes nothing.
    pub fn leases(&self, key: CounterKey, most: usize, now: Timestamp) -> Vec<LeaseView> {
        let now = now.max(self.now);
        let Some(counter) = self.counters.get(&key) else {
            return Vec::new();
        };
        let live =
            counter
                .leases
                .range((now, u64::MAX)..)
                .filter_map(|((_, sequence), permits)| {
                    let lease = self.records.get(*sequence)?;
                    (!self.sessions.is_over(lease.session, now)).then_some((lease, permits))
                });
        live.take(most)
            .map(|(lease, permits)| LeaseView {
                id: lease.id,
                holder: Arc::clone(&lease.holder),
                instance: Arc::clone(&lease.instance),
                permits: *permits,
                age: lease.age(now),
                expires_in: lease.expires.since(now),
                in_session: lease.session.is_some(),
            })
            .collect()
    }

    /// The oldest live leases of a key, at most `most`. Changes nothing. Takes time in proportion to
    /// the leases of the key.
    pub fn oldest_leases(&self, key: CounterKey, most: usize, now: Timestamp) -> Vec<LeaseView> {
        let mut all = self.leases(key, usize::MAX, now);
        all.sort_unstable_by_key(|lease| (Reverse(lease.age), lease.id.sequence));
        all.truncate(most);
        all
    }

    /// The holders with the most leases that nobody gave back, worst first.
    pub fn leaking_holders(&self, most: usize) -> Vec<(Arc<str>, HolderCount)> {
        let mut leaking: Vec<_> = self
            .records
            .holders()
            .filter(|(_, count)| count.expired > 0)
            .map(|(holder, count)| (Arc::clone(holder), *count))
            .collect();
        leaking.sort_unstable_by_key(|(_, count)| Reverse(count.expired));
        leaking.truncate(most);
        leaking
    }

    /// What happened in the whole book.
    pub const fn totals(&self) -> &Counts {
        &self.totals
    }

    /// Live leases of a session.
    pub fn leases_of(&self, session: SessionId) -> usize {
        self.sessions.leases(session).unwrap_or_default()
    }

    /// Live leases, sessions, calls that wait.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.records.len(), self.sessions.len(), self.waiters.len())
    }

    /// Every limit that was asked for, over all its keys. Takes time in proportion to the leases.
    pub fn limits(&mut self, now: Timestamp) -> Vec<LimitView> {
        self.advance(now);
        let now = self.now;
        let view = |(path, counts): &(Arc<str>, Counts)| LimitView {
            path: Arc::clone(path),
            counts: counts.clone(),
            ..LimitView::default()
        };
        let mut views: Vec<LimitView> = self.limits.iter().map(view).collect();
        for (key, counter) in &mut self.counters {
            counter.touch(now);
            let Some(view) = views.get_mut(counter.stats) else {
                continue;
            };
            let held = |lease: &Lease| {
                let part = lease.held.iter().find(|held| held.key == *key)?;
                Some((part.permits, now.since(lease.granted)))
            };
            let live = counter
                .leases
                .keys()
                .filter_map(|(_, sequence)| self.records.get(*sequence));
            let error = counter.audit.error(live.filter_map(held));
            add(view, counter, error, now);
        }
        for view in &mut views {
            finish(view);
        }
        views
    }

    /// Estimates of a key back to their prior; its leases are revoked only when asked for.
    pub fn reset(&mut self, key: CounterKey, revoke: bool, now: Timestamp) -> bool {
        self.advance(now);
        let now = self.now;
        let Some(counter) = self.counters.get_mut(&key) else {
            return false;
        };
        counter.touch(now);
        counter.reset(now);
        if let Some(cost) = counter.cost.take()
            && let Some(costs) = self.costs.get_mut(&counter.stats)
        {
            costs.forget(cost);
        }
        let path = Arc::clone(&counter.rule.path);
        let leases: Vec<u64> = counter
            .leases
            .keys()
            .map(|(_, sequence)| *sequence)
            .collect();
        if revoke {
            self.revoke_all(&leases, RevokedBy::Operator, &path);
        }
        self.limit_moved(key);
        true
    }
}

/// Adds a key to its limit.
fn add(view: &mut LimitView, counter: &Counter, error: i128, now: Timestamp) {
    let limit = counter.limit();
    let gate = counter.gate();
    view.keys += 1;
    view.limit = view.limit.saturating_add(limit);
    view.in_flight = view.in_flight.saturating_add(counter.in_flight);
    view.leases += counter.leases.len() as u64;
    view.waiters += counter.queue.len();
    view.reserved += counter.promised.reserved(gate, now);
    view.ghosts += counter.ghosts(now) as u64;
    view.arrival_rate += counter.flow.arrival_rate();
    view.throughput += counter.flow.throughput();
    view.mean_in_flight += counter.flow.mean_in_flight();
    view.mean_hold = view.mean_hold.max(gate.hold);
    if limit > 0 {
        view.saturation = view
            .saturation
            .max(counter.flow.mean_in_flight() / real(limit));
        if limit <= MOST_FORECAST {
            let load = counter.flow.arrival_rate() * gate.hold;
            view.refused_forecast = view.refused_forecast.max(blocking(load, limit));
        }
    }
    let nanos = u64::try_from(error.unsigned_abs()).unwrap_or(u64::MAX);
    view.conservation_error += real(nanos) / 1e9;
}

/// Quotients over all keys of a limit.
fn finish(view: &mut LimitView) {
    if view.throughput > 0.0 {
        view.mean_hold = view.mean_in_flight / view.throughput;
    }
    let ended: u64 = view.counts.ends.iter().map(|(_, count)| count).sum();
    if ended > 0 {
        view.leak_share = real(view.counts.ends.get("expired")) / real(ended);
        view.ttl_advice = sizing::ttl_for(view.mean_hold, view.leak_share, TTL_LOSS);
    }
}
