//! Stat paths with texts of requests in them: as many as there is room for have a name, those with
//! the most traffic, and the rest is counted together.
//!
//! While there is room, whoever comes gets a name. After that the rest is watched with a
//! [space-saving sketch](crate::telemetry::top::sketch) per thread, and once a [`TURN`] a path of
//! the rest that had surely more than twice the traffic of the least used name takes its place.
//! What it counted until then stays with the rest.
//!
//! No counter goes backwards under its name: a name that lost its place ends (its series is absent
//! from then on), and where it comes back it goes on from where it was. That is remembered for as
//! many names as have a place, those that went last; a name that comes back after that begins at 0,
//! as after a restart, which `rate()` knows how to read. Rates of the rest are right all the time;
//! a *sum of counters* over all names is not one: sum rates.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use dashmap::DashMap;
use parking_lot::Mutex;

use crate::{
    model::{
        key::{CounterKey, KeyHasher},
        time::Span,
    },
    telemetry::{
        rule::{RuleStat, RuleStats, Sums},
        stripe::PerThread,
        top::sketch::{Sketch, merge},
    },
};

/// How often names are given away anew: [`Names::turn`] is to be called so often.
pub const TURN: Span = Span::from_secs(60);

/// Longest path that can have a name, in bytes.
pub const MAX_PATH: usize = 1024;

/// Of the rest, so many paths per thread are watched, and may get a name at a turn.
const WATCHED: usize = 64;

/// So much more traffic than a name a path of the rest must have to take its place: two that have
/// about the same do not take turns.
const MORE: u64 = 2;

/// Paths by name.
#[derive(Debug)]
pub struct Names {
    places: DashMap<Box<str>, Place>,
    taken: AtomicUsize,
    most: usize,
    hasher: KeyHasher,
    /// What has no name in this turn.
    rest: PerThread<Option<Box<Sketch>>>,
    gone: Mutex<Gone>,
    replaced: AtomicU64,
}

#[derive(Debug)]
struct Place {
    stats: Arc<RuleStats>,
    /// [`traffic`] when this turn began.
    before: u64,
}

/// Names without a place, those that went first in front.
#[derive(Debug, Default)]
struct Gone {
    sums: HashMap<CounterKey, Sums>,
    order: VecDeque<CounterKey>,
}

impl Names {
    /// With room for so many names.
    pub fn new(most: usize) -> Self {
        Self {
            places: DashMap::new(),
            taken: AtomicUsize::new(0),
            most,
            hasher: KeyHasher::random(),
            rest: PerThread::default(),
            gone: Mutex::default(),
            replaced: AtomicU64::new(0),
        }
    }

    /// The counters under this name, to which `hits` are about to be added; none when it is one of
    /// the rest.
    pub fn get(&self, path: &str, hits: u64) -> Option<Arc<RuleStats>> {
        if let Some(place) = self.places.get(path) {
            return Some(Arc::clone(&place.stats));
        }
        if path.len() > MAX_PATH {
            return None;
        }
        let one_more = |taken: usize| (taken < self.most).then(|| taken + 1);
        if self
            .taken
            .try_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
        {
            return Some(self.take_place(path, Sums::default()));
        }
        let mut rest = self.rest.mine().lock();
        let rest = rest.get_or_insert_with(|| Box::new(Sketch::new(WATCHED)));
        rest.add(self.key(path), hits, |name| name.push_str(path));
        None
    }

    /// Gives a place that was counted as taken.
    fn take_place(&self, path: &str, sums: Sums) -> Arc<RuleStats> {
        let mut is_new = false;
        let place = self.places.entry(path.into()).or_insert_with(|| {
            is_new = true;
            let stats = RuleStats::starting_at(sums);
            Place {
                before: traffic(&stats),
                stats: Arc::new(stats),
            }
        });
        let stats = Arc::clone(&place.stats);
        drop(place);
        if !is_new {
            // Two threads saw it come at once.
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
        stats
    }

    /// Ends a turn: gives names to those of the rest that had more traffic in it.
    pub fn turn(&self) {
        let mut sketches = Vec::new();
        for rest in self.rest.all() {
            let taken = rest.lock().take();
            sketches.extend(taken.map(|sketch| *sketch));
        }
        let mut named: Vec<(u64, Box<str>)> = Vec::new();
        for mut place in self.places.iter_mut() {
            let now = traffic(&place.stats);
            let moved = now.wrapping_sub(place.before);
            place.before = now;
            // Nobody looks at the names while none of the rest wants one.
            if !sketches.is_empty() {
                named.push((moved, place.key().clone()));
            }
        }
        named.sort_unstable();
        for (counted, (moved, least)) in merge(&sketches).into_iter().zip(named) {
            let sure = counted.hits - counted.over;
            if sure <= moved.saturating_mul(MORE) {
                // Those behind it have fewer, and the names that are left have more.
                break;
            }
            self.replace(&least, &counted.name, counted.key);
        }
    }

    fn replace(&self, least: &str, path: &str, key: CounterKey) {
        let Some((_, place)) = self.places.remove(least) else {
            return;
        };
        let mut gone = self.gone.lock();
        let sums = gone.sums.remove(&key).unwrap_or_default();
        gone.remember(self.key(least), place.stats.sums(), self.most);
        drop(gone);
        let _stats = self.take_place(path, sums);
        self.replaced.fetch_add(1, Ordering::Relaxed);
    }

    /// Names that have a place.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How often a name lost its place to another.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Calls `each` with every name and its sums.
    pub fn for_each(&self, mut each: impl FnMut(&str, Sums)) {
        for place in &self.places {
            each(place.key(), place.stats.sums());
        }
    }

    fn key(&self, path: &str) -> CounterKey {
        let mut hasher = self.hasher;
        hasher.text(path);
        hasher.finish()
    }
}

/// Everything that was asked under a name.
fn traffic(stats: &RuleStats) -> u64 {
    let sums = stats.sums();
    let [hits, unknown] = [RuleStat::TotalHits, RuleStat::DomainNotFound];
    sums[hits as usize].wrapping_add(sums[unknown as usize])
}

impl Gone {
    /// Keeps the sums of a name; of more than `most` the first are forgotten.
    fn remember(&mut self, key: CounterKey, sums: Sums, most: usize) {
        self.sums.insert(key, sums);
        self.order.push_back(key);
        // A name that came back is in the order still, once or more.
        while self.sums.len() > most || self.order.len() > 2 * most.max(1) {
            let Some(first) = self.order.pop_front() else {
                break;
            };
            if !self.order.contains(&first) {
                self.sums.remove(&first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(names: &Names, path: &str, hits: u64) -> bool {
        let stats = names.get(path, hits);
        if let Some(stats) = &stats {
            stats.add(RuleStat::TotalHits, hits);
        }
        stats.is_some()
    }

    fn shown(names: &Names) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        names.for_each(|path, sums| all.push((path.to_owned(), sums[0])));
        all.sort();
        all
    }

    fn named(list: &[(&str, u64)]) -> Vec<(String, u64)> {
        let one = |(name, hits): &(&str, u64)| ((*name).to_owned(), *hits);
        list.iter().map(one).collect()
    }

    #[test]
    fn the_heaviest_have_the_names_whoever_came_first() {
        let names = Names::new(2);
        assert!(ask(&names, "first", 1) && ask(&names, "second", 10));
        // Five times as much as the first, and less than twice the second.
        for _ in 0..5 {
            assert!(!ask(&names, "heavy", 1));
        }
        assert!(!ask(&names, "middle", 19));
        names.turn();
        assert_eq!(shown(&names), named(&[("middle", 0), ("second", 10)]));
        assert!(!ask(&names, "first", 1));
        assert!(ask(&names, "middle", 19) && ask(&names, "second", 10));
        assert_eq!((names.len(), names.replaced()), (2, 1));
        // A turn without traffic of the rest changes nothing, and one without traffic of the names
        // gives both away.
        names.turn();
        names.turn();
        assert_eq!(shown(&names), named(&[("middle", 19), ("second", 20)]));
        ask(&names, "a", 1);
        ask(&names, "b", 1);
        names.turn();
        assert_eq!(shown(&names), named(&[("a", 0), ("b", 0)]));
    }

    #[test]
    fn a_name_that_comes_back_goes_on_from_where_it_was() {
        let names = Names::new(1);
        ask(&names, "a", 7);
        names.turn();
        for (path, before) in [("b", 0), ("a", 7), ("b", 100), ("a", 107)] {
            ask(&names, path, 100);
            names.turn();
            assert_eq!(shown(&names), named(&[(path, before)]));
            ask(&names, path, 100);
            names.turn();
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let names = Names::new(2);
        ask(&names, "a", 1);
        ask(&names, "b", 1);
        for number in 0..100 {
            names.turn();
            ask(&names, &format!("c{number}"), 10);
            ask(&names, "d", 10);
        }
        let gone = names.gone.lock();
        assert!(gone.sums.len() <= 2 && gone.order.len() <= 4, "{gone:?}");
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn long_paths_are_of_the_rest() {
        let names = Names::new(10);
        assert!(!ask(&names, &"x".repeat(MAX_PATH + 1), 1));
        assert!(ask(&names, &"x".repeat(MAX_PATH), 1));
        names.turn();
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn threads_that_see_a_name_come_at_once_take_one_place() {
        let names = Names::new(3);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..3).for_each(|n| assert!(ask(&names, &format!("n{n}"), 1))));
            }
        });
        assert_eq!(shown(&names), named(&[("n0", 16), ("n1", 16), ("n2", 16)]));
        assert_eq!(names.taken.load(Ordering::Relaxed), 3);
    }
}
