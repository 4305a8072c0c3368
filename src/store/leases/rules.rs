//! Other versions of the rules: where the leases of a domain are, and what its limits are from now
//! on.

use std::{collections::HashMap, sync::Arc};

use super::Leases;
use crate::{
    model::time::Now,
    rules::{Rules, concurrency::ConcurrencyRule},
    store::{fallback::SharedStore, fleet::Fleet, redis::not_shared},
};

impl Leases {
    /// Takes over other versions of the rules: leases stay, raised limits serve who waits.
    pub fn reload(&self, rules: &Rules, now: Now) {
        self.share(rules);
        let mut by_path = HashMap::new();
        for rule in rules.rules() {
            if let Some(concurrency) = &rule.concurrency {
                by_path.insert(Arc::clone(&concurrency.path), Arc::clone(concurrency));
            }
        }
        let wanted = |rule: &Arc<ConcurrencyRule>| rule.gone.after.is_some();
        self.connections.set_wanted(by_path.values().any(wanted));
        self.reopen(|path| by_path.get(path).map(Arc::clone), now);
        // Stand-ins take their part of a limit with each request.
        for book in &self.books.by_domain {
            book.with(now, |book| {
                book.reload(|path| by_path.get(path).map(Arc::clone), now.steady);
            });
        }
        self.drop_departed(rules, now);
    }

    /// Decides which domains have their leases in the shared store: those whose limits can all be
    /// counted there, because what is asked for together is decided together.
    fn share(&self, rules: &Rules) {
        let Some(shared) = &self.shared else {
            return;
        };
        for domain in rules.domains() {
            let limits = domain.rules_in_flight();
            let against = limits
                .iter()
                .find_map(|rule| Some((rule, not_shared(rule)?)));
            if let Some((rule, why)) = against {
                self.fleets.remove(&domain.name);
                let at = &rule.source;
                tracing::warn!(
                    domain = &*domain.name,
                    rule = &*rule.path,
                    at = format_args!("{}:{}:{}", at.file, at.line, at.column),
                    "work in flight of this domain is counted by each replica on its own, not over \
                     the fleet: {why}"
                );
            } else if !limits.is_empty() && !self.fleets.contains_key(&domain.name) {
                let fleet = self.fleet(&domain.name, shared);
                if self.stopping.borrow().is_some() {
                    fleet.drain();
                }
                self.fleets.insert(Arc::clone(&domain.name), fleet);
            }
        }
    }

    /// The one of earlier rules, or a new one.
    fn fleet(&self, domain: &Arc<str>, shared: &Arc<SharedStore>) -> Arc<Fleet> {
        let number = shared.redis().number_of(domain);
        let mut of_number = self.fleets_by_number.entry(number).or_default();
        if let Some(known) = of_number.iter().find(|fleet| fleet.domain() == domain) {
            return Arc::clone(known);
        }
        let fleet = Fleet::new(domain, shared, &self.clock, self.bounds, |book| {
            self.book(book)
        });
        let fleet = Arc::new(fleet);
        of_number.push(Arc::clone(&fleet));
        fleet
    }
}
