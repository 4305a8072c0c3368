//! Books of domains that rules do not know any more: without this, files that name their domains
//! anew at each load would leave a book behind for each.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::Leases;
use crate::{
    model::time::Now,
    rules::Rules,
    store::{fleet::Fleet, lease::LeaseBook},
};

/// What is known of domains that went away.
#[derive(Debug, Default)]
pub(super) struct Departed {
    /// Domains that have a book or a fleet, and that the latest rules did not know.
    domains: Mutex<HashSet<Arc<str>>>,
    /// No dropped book told a larger fence.
    fence: AtomicU64,
}

impl Departed {
    /// A domain that comes back goes on with larger fences than it ever told.
    pub(super) fn precede(&self, book: &mut LeaseBook) {
        book.raise_fence(self.fence());
    }

    /// No dropped book told a larger one.
    pub(super) fn fence(&self) -> u64 {
        self.fence.load(Ordering::Relaxed)
    }
}

impl Leases {
    /// Drops what two loads of rules in a row did not know, once nothing is in it. Not at the
    /// first: a request that began under the rules before may be about to ask. Leases in the shared
    /// store end by their TTLs, or are given back when the domain has come back.
    pub(super) fn drop_departed(&self, rules: &Rules, now: Now) {
        let known = rules.domains().into_iter().map(|domain| &*domain.name);
        let known: HashSet<&str> = known.collect();
        let books = self
            .books
            .by_domain
            .iter()
            .map(|book| Arc::clone(book.key()));
        let fleets = self.fleets.iter().map(|fleet| Arc::clone(fleet.key()));
        let gone: HashSet<Arc<str>> = books
            .chain(fleets)
            .filter(|domain| !known.contains(&**domain))
            .collect();
        let mut departed = self.departed.domains.lock();
        for domain in gone.intersection(&departed) {
            self.drop_book(domain, now);
            self.drop_fleet(domain, now);
        }
        *departed = gone;
    }

    fn drop_book(&self, domain: &Arc<str>, now: Now) {
        let dropped = self.books.by_domain.remove_if(domain, |_, book| {
            book.with(now, |book| {
                let is_empty = book.sizes() == (0, 0, 0);
                if is_empty {
                    let fence = &self.departed.fence;
                    fence.fetch_max(book.fence(), Ordering::Relaxed);
                }
                is_empty
            })
        });
        if let Some((_, book)) = dropped {
            let number = book.with(now, |book| book.identity().book);
            self.by_number.remove(&number);
        }
    }

    fn drop_fleet(&self, domain: &Arc<str>, now: Now) {
        let is_empty = |fleet: &Arc<Fleet>| {
            let stand_in = fleet.stand_in();
            stand_in.with(now, |book| book.sizes() == (0, 0, 0))
        };
        let dropped = self.fleets.remove_if(domain, |_, fleet| is_empty(fleet));
        if let Some((_, fleet)) = dropped {
            let number = fleet.number();
            if let Some(mut of_number) = self.fleets_by_number.get_mut(&number) {
                of_number.retain(|kept| !Arc::ptr_eq(kept, &fleet));
            }
            self.fleets_by_number
                .remove_if(&number, |_, fleets| fleets.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::Ordering};

    use smallvec::SmallVec;

    use crate::{
        config::{self, LoadOptions},
        model::{
            key::KeyHasher,
            time::{Clock, ManualClock, Span},
        },
        rules::Rules,
        store::{
            Store,
            lease::{Ask, Bounds, Item},
            leases::{Acquired, Leases},
            memory::{MemoryOptions, MemoryStore},
        },
    };

    fn rules(domain: &str) -> Rules {
        let text =
            format!("domain: {domain}\ndescriptors: [{{key: work, concurrency: {{limit: 5}}}}]\n");
        let loaded = config::parse(&[("rules.yaml", &text)], &LoadOptions::default());
        loaded.into_rules().unwrap()
    }

    fn leases(clock: &Clock) -> Leases {
        let store = Store::from(MemoryStore::new(MemoryOptions::default()));
        Leases::new(&store, Bounds::default(), clock.clone())
    }

    /// Takes a permit of the domain; tells its fence.
    fn take(leases: &Leases, rules: &Rules, clock: &Clock) -> u64 {
        let domain = &rules.domains()[0].name;
        let rule = rules.rules()[0].concurrency.clone().unwrap();
        let key = KeyHasher::random().finish();
        let book = leases.of_domain(domain, clock.now()).unwrap();
        let items = [Item::one(key, &rule)];
        let taken = book
            .acquire(&Ask::new(&items), SmallVec::new(), clock, clock.now())
            .unwrap();
        let Acquired::Now(answer, _) = taken else {
            panic!("there is room")
        };
        answer.fence
    }

    #[test]
    fn domains_that_change_their_names_at_each_load_leave_no_book_behind() {
        let time = ManualClock::default();
        let clock = time.clock();
        let leases = leases(&clock);
        let mut fences = Vec::new();
        // Past the end of what numbers books.
        leases.next.store(u16::MAX - 5, Ordering::Relaxed);
        for load in 0..1_000 {
            let rules = rules(&format!("domain-{load}"));
            leases.reload(&rules, clock.now());
            fences.push(take(&leases, &rules, &clock));
            // Nobody gives back; they end by themselves.
            time.advance(Span::from_secs(3_600));
        }
        assert!(leases.books.by_domain.len() <= 3);
        assert_eq!(leases.by_number.len(), leases.books.by_domain.len());
        // A domain that came back would not know of smaller ones.
        assert!(fences.is_sorted() && fences[999] > fences[0]);
    }

    #[test]
    fn a_book_with_a_lease_in_it_stays() {
        let time = ManualClock::default();
        let clock = time.clock();
        let leases = leases(&clock);
        let (ours, other) = (rules("ours"), rules("other"));
        leases.reload(&ours, clock.now());
        let fence = take(&leases, &ours, &clock);
        let book = leases.of_domain(&"ours".into(), clock.now()).unwrap();
        for _ in 0..3 {
            leases.reload(&other, clock.now());
        }
        let again = leases.of_domain(&"ours".into(), clock.now()).unwrap();
        assert!(Arc::ptr_eq(&book, &again));
        time.advance(Span::from_secs(3_600));
        leases.reload(&other, clock.now());
        // A restart remembers it too.
        assert!(leases.save(clock.now()).fence >= fence);
        let fresh = leases.of_domain(&"ours".into(), clock.now()).unwrap();
        assert!(!Arc::ptr_eq(&book, &fresh));
        leases.reload(&ours, clock.now());
        assert!(take(&leases, &ours, &clock) > fence);
    }
}
