//! Counters of what rule files name (rules, domains), which stay for a while when a load of the
//! files has dropped it.
//!
//! A rule that a later load brings back goes on counting from where it was. Of those that are gone
//! as many are kept as there are live ones, and at least [`MOST_DEPARTED`]: the ones that went
//! last. So files that name everything anew at each load take a bounded amount of memory. What is
//! forgotten ends as a series, and would begin at 0 again, as after a restart.

use std::sync::Arc;

use dashmap::{DashMap, mapref::one::RefMut};
use parking_lot::Mutex;

/// So many of those that are gone are kept, however few live ones there are.
pub const MOST_DEPARTED: usize = 1_000;

/// Counters by path.
#[derive(Debug)]
pub struct ByPath<T> {
    places: DashMap<Box<str>, Place<T>>,
    /// Number of the latest load.
    loads: Mutex<u64>,
}

#[derive(Debug)]
struct Place<T> {
    counters: Arc<T>,
    /// The latest load that named it.
    load: u64,
}

impl<T> Default for ByPath<T> {
    fn default() -> Self {
        Self {
            places: DashMap::new(),
            loads: Mutex::default(),
        }
    }
}

impl<T: Default> ByPath<T> {
    /// The counters of everything that is live after a load, in this order; forgets what is gone
    /// for long. What a request still counts under stays.
    pub fn load<'p>(&self, live: impl IntoIterator<Item = &'p str>) -> Vec<Arc<T>> {
        self.follow(live, |path| {
            Some(self.places.entry(path.into()).or_default())
        })
    }

    /// The same, without places for what has none yet.
    pub fn refresh<'p>(&self, live: impl IntoIterator<Item = &'p str>) {
        let _counters = self.follow(live, |path| self.places.get_mut(path));
    }

    fn follow<'s, 'p>(
        &'s self,
        live: impl IntoIterator<Item = &'p str>,
        find: impl Fn(&'p str) -> Option<RefMut<'s, Box<str>, Place<T>>>,
    ) -> Vec<Arc<T>> {
        let mut loads = self.loads.lock();
        *loads += 1;
        let load = *loads;
        let found = live.into_iter().filter_map(|path| {
            let mut place = find(path)?;
            place.load = load;
            Some(place.counters())
        });
        let counters: Vec<Arc<T>> = found.collect();
        self.forget(load, counters.len());
        counters
    }

    /// The counters of a path that was live lately.
    pub fn get(&self, path: &str) -> Option<Arc<T>> {
        self.places.get(path).map(|place| place.counters())
    }

    /// The same, of a path that belongs to something live; new if need be.
    pub fn get_or_new(&self, path: &str) -> Arc<T> {
        if let Some(counters) = self.get(path) {
            return counters;
        }
        // The next load tells whether it is live.
        self.places.entry(path.into()).or_default().counters()
    }

    /// Calls `each` with every path and its counters, in no order.
    pub fn for_each(&self, mut each: impl FnMut(&str, &T)) {
        for place in &self.places {
            each(place.key(), &place.counters);
        }
    }

    /// How many there are, live or gone.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn forget(&self, load: u64, live: usize) {
        let most = live.max(MOST_DEPARTED);
        if self.places.len() <= live.saturating_add(most) {
            return;
        }
        let gone = self.places.iter().filter(|place| place.load < load);
        let mut gone: Vec<(u64, Box<str>)> = gone
            .map(|place| (place.load, place.key().clone()))
            .collect();
        // First those that went first.
        gone.sort_unstable();
        gone.truncate(gone.len().saturating_sub(most));
        for (_, path) in gone {
            self.places
                .remove_if(&path, |_, place| Arc::strong_count(&place.counters) == 1);
        }
    }
}

impl<T> Place<T> {
    fn counters(&self) -> Arc<T> {
        Arc::clone(&self.counters)
    }
}

impl<T: Default> Default for Place<T> {
    fn default() -> Self {
        Self {
            counters: Arc::default(),
            load: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    #[test]
    fn names_that_change_at_each_load_are_bounded() {
        let all = ByPath::<AtomicU64>::default();
        let mut before = Vec::new();
        for load in 0..10_000 {
            let names: Vec<String> = (0..3).map(|name| format!("{load}.{name}")).collect();
            // As the rules of the load before are still installed while the new ones are made.
            before = all.load(names.iter().map(String::as_str));
            assert!(all.len() <= 2 * before.len() + MOST_DEPARTED + 3, "{load}");
        }
        assert_eq!(before.len(), 3);
        assert!(all.get("9999.2").is_some() && all.get("9700.0").is_some());
        assert!(all.get("9000.0").is_none());
    }

    #[test]
    fn as_many_are_kept_as_there_are_live_ones() {
        let all = ByPath::<AtomicU64>::default();
        let names = |of: &str| (0..3_000).map(|n| format!("{of}{n}")).collect::<Vec<_>>();
        for of in ["a", "b", "c"] {
            let names = names(of);
            let _live = all.load(names.iter().map(String::as_str));
        }
        assert_eq!(all.len(), 6_000);
        assert!(all.get("a0").is_none() && all.get("b0").is_some());
        let _none = all.load([]);
        assert_eq!(all.len(), MOST_DEPARTED);
        assert!(all.get("b0").is_none());
    }

    #[test]
    fn one_that_comes_back_soon_goes_on_counting() {
        let all = ByPath::<AtomicU64>::default();
        let first = all.load(["a", "b"]);
        first[0].fetch_add(5, Relaxed);
        let _second = all.load(["b"]);
        assert_eq!(all.load(["b", "a"])[1].load(Relaxed), 5);
    }

    #[test]
    fn what_somebody_counts_under_is_not_forgotten() {
        let all = ByPath::<AtomicU64>::default();
        let held = all.load(["held"]);
        let other = all.get_or_new("other");
        for load in 0..2 * MOST_DEPARTED {
            let _live = all.load([load.to_string().as_str()]);
        }
        held[0].fetch_add(1, Relaxed);
        assert_eq!(all.get("held").unwrap().load(Relaxed), 1);
        drop(other);
        let _live = all.load(["last"]);
        assert!(all.get("other").is_none());
    }
}
