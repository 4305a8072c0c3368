//! How keys stand over all replicas, who holds their permits, and the way back to the beginning.

use std::cmp::Reverse;

use super::Fleet;
use crate::{
    algorithm::concurrency::real::real,
    model::{key::CounterKey, time::Span},
    rules::concurrency::ConcurrencyRule,
    store::{
        lease::{KeyView, LeaseView},
        redis::{
            StoreError,
            lease::{Message, Standing, count, leases as listed, standings},
        },
    },
};

impl Fleet {
    /// How a key stands; none of one that nobody asked for. Changes nothing.
    pub async fn peek(
        &self,
        key: CounterKey,
        rule: &ConcurrencyRule,
    ) -> Result<Option<KeyView>, StoreError> {
        let standings = self.standings(&[key]).await?;
        let view = |standing| self.view(key, rule.limit.most(), standing);
        Ok(standings.into_iter().next().flatten().map(view))
    }

    /// How keys stand; none of one that nobody asked for.
    pub(super) async fn standings(
        &self,
        keys: &[CounterKey],
    ) -> Result<Vec<Option<Standing>>, StoreError> {
        let message = Message::peek(keys);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        answer.and_then(standings)
    }

    /// Live leases of keys, in the order of the keys: at most `most` of each, those that end soonest,
    /// the oldest first. One call of the script.
    pub async fn leases(
        &self,
        keys: &[CounterKey],
        most: usize,
    ) -> Result<Vec<Vec<LeaseView>>, StoreError> {
        let message = Message::peek_leases(keys, most);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        let mut listed = answer.and_then(listed)?;
        for leases in &mut listed {
            leases.sort_by_key(|lease| Reverse(lease.age));
        }
        Ok(listed)
    }

    pub(super) fn view(&self, key: CounterKey, limit: u64, standing: Standing) -> KeyView {
        let rate = |count: f64| {
            if standing.time > 0.0 {
                count / standing.time
            } else {
                0.0
            }
        };
        let pace = standing.mean_hold / real(limit).max(1.0);
        let reserved = standing.promised.as_secs_f64() / pace.max(f64::MIN_POSITIVE);
        KeyView {
            limit,
            in_flight: standing.in_flight,
            remaining: limit.saturating_sub(standing.in_flight),
            leases: standing.leases,
            waiters: self.queues.waiting_for(key),
            reserved: if pace > 0.0 { reserved } else { 0.0 },
            ghosts: standing.ghosts,
            mean_hold: standing.mean_hold,
            arrival_rate: rate(standing.arrived),
            throughput: rate(standing.completed),
            mean_in_flight: rate(standing.area),
            last_change: None,
        }
    }

    /// Estimates of a key back to their prior; its leases are revoked only when asked for. Whether
    /// it was known.
    pub async fn reset(&self, key: CounterKey, revoke: bool) -> Result<bool, StoreError> {
        let message = Message::reset(key, revoke);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await?;
        self.queues.call(key);
        Ok(count(&answer)? > 0)
    }
}
