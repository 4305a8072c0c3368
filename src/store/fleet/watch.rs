//! How the limits that this process lately asked for stand, for the metrics.
//!
//! The store is asked by a timer, not by who reads the metrics: that never waits. Nothing is shown
//! of what the store did not tell the last time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{Fleet, Request};
use crate::{
    algorithm::concurrency::real::real,
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
    store::lease::{KeyView, LimitView},
};

/// Most keys of a domain that are watched. More are not shown.
const MOST: usize = 256;
/// A key that nobody asked for this long is not watched any more.
const FORGOTTEN: Span = Span::from_secs(60);
/// Keys of one call: what the store does in one go stays short.
const AT_ONCE: usize = 64;

/// Keys that are watched, and how their limits stood.
#[derive(Debug, Default)]
pub(super) struct Watch {
    keys: Mutex<HashMap<CounterKey, Watched>>,
    seen: Mutex<Vec<LimitView>>,
}

#[derive(Clone, Debug)]
struct Watched {
    path: Arc<str>,
    limit: u64,
    asked: Timestamp,
}

impl Watch {
    /// A request asks for these keys.
    pub(super) fn note(&self, request: &Request, now: Timestamp) {
        let mut keys = self.keys.lock();
        for (item, (rule, limit)) in request.order.items.iter().zip(&request.rules) {
            if let Some(known) = keys.get_mut(&item.key) {
                (known.limit, known.asked) = (*limit, now);
            } else if keys.len() < MOST {
                let watched = Watched {
                    path: Arc::clone(&rule.path),
                    limit: *limit,
                    asked: now,
                };
                keys.insert(item.key, watched);
            }
        }
    }

    fn watched(&self, now: Timestamp) -> Vec<(CounterKey, Watched)> {
        let mut keys = self.keys.lock();
        keys.retain(|_, watched| watched.asked.until(now) < FORGOTTEN);
        keys.iter()
            .map(|(key, watched)| (*key, watched.clone()))
            .collect()
    }
}

impl Fleet {
    /// Asks the store how the watched keys stand.
    pub(in crate::store) async fn look_again(&self) {
        let watched = self.watch.watched(self.clock.now().steady);
        let mut views: BTreeMap<Arc<str>, LimitView> = BTreeMap::new();
        for some in watched.chunks(AT_ONCE) {
            let keys: Vec<CounterKey> = some.iter().map(|(key, _)| *key).collect();
            let Ok(standings) = self.standings(&keys).await else {
                views.clear();
                break;
            };
            for ((key, watched), standing) in some.iter().zip(standings) {
                let view = views.entry(Arc::clone(&watched.path)).or_default();
                let standing = standing.unwrap_or_default();
                add(view, &self.view(*key, watched.limit, standing));
            }
        }
        let finished = views.into_iter().map(|(path, view)| LimitView {
            path,
            mean_hold: if view.throughput > 0.0 {
                view.mean_in_flight / view.throughput
            } else {
                view.mean_hold
            },
            ..view
        });
        *self.watch.seen.lock() = finished.collect();
    }

    /// How the limits of watched keys stood lately, over all replicas. Counts of what happened are
    /// each process' own and not in it.
    pub(in crate::store) fn limits(&self) -> Vec<LimitView> {
        self.watch.seen.lock().clone()
    }
}

/// Adds a key to its limit.
fn add(limit: &mut LimitView, key: &KeyView) {
    limit.keys += 1;
    limit.limit = limit.limit.saturating_add(key.limit);
    limit.in_flight = limit.in_flight.saturating_add(key.in_flight);
    limit.leases += key.leases;
    limit.waiters += key.waiters;
    limit.reserved += key.reserved;
    limit.ghosts += key.ghosts;
    limit.arrival_rate += key.arrival_rate;
    limit.throughput += key.throughput;
    limit.mean_in_flight += key.mean_in_flight;
    limit.mean_hold = limit.mean_hold.max(key.mean_hold);
    if key.limit > 0 {
        let saturation = key.mean_in_flight / real(key.limit);
        limit.saturation = limit.saturation.max(saturation);
    }
}
