//! From descriptors to the limits they touch, and under which counter keys.

use std::{slice, sync::Arc};

use smallvec::SmallVec;

use crate::{
    engine::permits::{Action, Permits},
    model::{
        key::{CounterKey, KeyHasher},
        limit::{Algorithm, Anchor, Quota},
        request::{Descriptor, Entry, Override, Request},
        time::Span,
    },
    rules::{
        Domain,
        limit::{Limit, Shown},
        lookup::Match,
        tree::{MOST_LIMITS, RequestLimit, Rule},
    },
    store::{Charge, Charges, Role, Terms},
};

/// What each descriptor of a request touches, in the order of the request.
pub type Resolved<'r> = SmallVec<[Touched<'r>; 4]>;

/// What one descriptor touches. Small, because every decision makes one: the keys of its counters
/// follow from one name.
#[derive(Debug)]
pub struct Touched<'r> {
    /// The rule that the descriptor found; none when nothing matched.
    pub matched: Option<&'r Arc<Rule>>,
    /// The limit that came with the request. It stands in the place of the rule's limits.
    pub override_limit: Option<Box<Limit>>,
    /// What is asked of the rule's limit on work in flight. Rarely there, and large.
    pub permits: Option<Box<Permits>>,
    /// Its counters are [siblings](CounterKey::sibling) of this.
    name: CounterKey,
    /// Limits that do not apply, a bit each.
    dropped: Dropped,
    /// Units asked for.
    pub cost: u64,
    /// See [`Match::has_static_path`].
    pub has_static_path: bool,
    /// What a refusal here means.
    pub role: Role,
    /// A refusal here is only counted.
    pub shadow: bool,
    /// The units are given back.
    pub refund: bool,
}

type Dropped = u64;
const _: () = assert!(MOST_LIMITS <= Dropped::BITS as usize);

/// A limit of a descriptor and the counter that it holds.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'t> {
    /// Place among the rule's limits; 0 of a limit that came with the request.
    pub place: usize,
    /// What it is held to.
    pub limit: &'t Limit,
    /// The counter.
    pub key: CounterKey,
}

impl<'r> Touched<'r> {
    /// The rule that decides here; none when nothing matched, and for overrides that are more than
    /// numbers for the rule's own limit.
    pub fn rule(&self) -> Option<&'r Arc<Rule>> {
        let rule = self.matched?;
        let decides = self.override_limit.is_none() || rule.request_limit == RequestLimit::Numbers;
        decides.then_some(rule)
    }

    /// The rule says: no limit, no counting.
    pub fn is_unlimited(&self) -> bool {
        self.rule().is_some_and(|rule| rule.unlimited)
    }

    /// It asks for permits: looks and releases do not.
    pub fn takes_permits(&self) -> bool {
        let action = self.permits.as_ref().map(|permits| permits.action);
        matches!(action, Some(Action::Take(_)))
    }

    /// The limits that apply, and their counters.
    #[inline]
    pub fn counters(&self) -> impl Iterator<Item = Counter<'_>> {
        let applies = |place: &usize| self.dropped & (1 << place) == 0;
        let places = (0..self.limits().len().min(MOST_LIMITS)).filter(applies);
        places.filter_map(|place| self.counter_at(place))
    }

    fn counter_at(&self, place: usize) -> Option<Counter<'_>> {
        let limit = self.limits().get(place)?;
        Some(Counter {
            place,
            limit,
            key: self.name.sibling(limit.discriminator),
        })
    }

    /// Nothing is asked of anything.
    pub fn asks_nothing(&self) -> bool {
        self.permits.is_none() && self.counters().next().is_none()
    }

    fn limits(&self) -> &[Limit] {
        match &self.override_limit {
            Some(limit) => slice::from_ref(&**limit),
            None => self.matched.map_or(&[], |rule| &rule.limits),
        }
    }

    /// What is asked of one of its counters, by the descriptor at that place.
    fn charge<'t>(&self, counter: Counter<'t>, descriptor: usize) -> Charge<'t> {
        Charge {
            key: counter.key,
            limit: counter.limit,
            cost: self.cost,
            refund: self.refund,
            role: self.role,
            shadow: self.shadow,
            descriptor,
        }
    }
}

/// What is asked of the store, in order.
pub fn charges<'t>(domain: &Domain, resolved: &'t [Touched<'_>]) -> Charges<'t> {
    let mut charges = Charges::default();
    charge(domain, resolved, &mut charges);
    charges
}

/// The charge of a request that asks for one thing, as most do.
#[inline]
pub fn only_charge<'t>(resolved: &'t [Touched<'_>]) -> Option<Charge<'t>> {
    let [touched] = resolved else { return None };
    let mut counters = touched.counters();
    let only = counters.next().filter(|_| counters.next().is_none())?;
    Some(touched.charge(only, 0))
}

/// What holds for everything that is asked for in a domain, without waiting.
#[inline]
pub fn terms(domain: &Domain) -> Terms {
    Terms {
        stacking: domain.stacking,
        tell_more: domain.answer.headers.ietf.is_some(),
        patience: Some(Span::ZERO),
        spread: domain.spread,
        ..Terms::default()
    }
}

/// [`charges`] that fills them in place: they are too large to be moved about.
pub fn charge<'t>(domain: &Domain, resolved: &'t [Touched<'_>], charges: &mut Charges<'t>) {
    charges.terms = terms(domain);
    for (descriptor, touched) in resolved.iter().enumerate() {
        let before = charges.list.len();
        for counter in touched.counters() {
            charges.list.push(touched.charge(counter, descriptor));
        }
        charges.terms.quota_passed |= touched.role == Role::Quota && charges.list.len() == before;
    }
}

/// Finds the rule of every descriptor, applies overrides and `replaces`, and names the counters.
/// `resolved` is filled in place: it is too large to be moved about.
pub fn resolve<'r>(
    domain: &'r Domain,
    request: &Request<'_>,
    hasher: &KeyHasher,
    all_are_quota: bool,
    resolved: &mut Resolved<'r>,
) {
    let mut replaces = false;
    for descriptor in &request.descriptors {
        let entries = request.entries(descriptor);
        let found = domain.find_hashed(entries, hasher);
        resolved.push(Touched {
            matched: found.as_ref().map(|found| found.rule),
            override_limit: None,
            permits: None,
            name: found
                .as_ref()
                .map_or(CounterKey::from_bits(0), |found| found.name),
            dropped: 0,
            cost: cost(request, descriptor),
            has_static_path: found.as_ref().is_some_and(|found| found.has_static_path),
            role: Role::Enforced,
            shadow: false,
            refund: descriptor.is_negative_hits,
        });
        let Some(touched) = resolved.last_mut() else {
            continue;
        };
        if let Some(limit) = descriptor.limit {
            touched.count_by_request(limit, domain, entries, hasher);
        }
        if touched
            .matched
            .is_some_and(|rule| rule.concurrency.is_some())
        {
            touched.ask_permits(domain, descriptor, entries, hasher);
        }
        touched.role = role(touched, all_are_quota);
        if let Some(rule) = touched.rule() {
            touched.shadow = rule.shadow_mode;
            replaces |= !rule.replaces.is_empty();
        }
    }
    if replaces {
        drop_replaced(resolved, all_are_quota);
    }
}

/// A descriptor's own cost, also 0; else the request's, where 0 means 1.
fn cost(request: &Request<'_>, descriptor: &Descriptor) -> u64 {
    descriptor
        .hits_addend
        .unwrap_or_else(|| u64::from(request.hits_addend.max(1)))
}

fn role(touched: &Touched<'_>, all_are_quota: bool) -> Role {
    let quota = all_are_quota || touched.rule().is_some_and(|rule| rule.quota_mode);
    if quota && !touched.is_unlimited() {
        Role::Quota
    } else {
        Role::Enforced
    }
}

impl Touched<'_> {
    /// A release gives permits back and nothing else: rate units are spent when the work begins.
    #[inline(never)]
    fn ask_permits(
        &mut self,
        domain: &Domain,
        descriptor: &Descriptor,
        entries: &[Entry<'_>],
        hasher: &KeyHasher,
    ) {
        let matched = domain.find(entries);
        let hasher = domain.named(hasher);
        let permits =
            matched.and_then(|m| Permits::of(&m, self.cost, descriptor, entries, &hasher));
        self.permits = permits.map(Box::new);
        if self.permits.as_ref().is_some_and(|p| p.is_release()) {
            self.dropped = Dropped::MAX;
            self.refund = true;
        }
    }

    /// By a limit that came with the request.
    #[cold]
    fn count_by_request(
        &mut self,
        limit: Override,
        domain: &Domain,
        entries: &[Entry<'_>],
        hasher: &KeyHasher,
    ) {
        let matched = domain.find(entries);
        let hasher = domain.named(hasher);
        match matched {
            Some(matched) if matched.rule.request_limit == RequestLimit::Numbers => {
                self.count_by_numbers(limit, &matched, matched.hashed(entries, &hasher));
            }
            matched => self.count_by_override(limit, matched.as_ref(), entries, hasher),
        }
    }

    /// The rule's single limit with other numbers: its own counter when the periods agree, so that
    /// what was used stays used when the units change (of a bucket, the time until it is drained),
    /// and one for each other period.
    fn count_by_numbers(&mut self, numbers: Override, matched: &Match<'_>, mut hasher: KeyHasher) {
        let [own] = matched.rule.limits.as_slice() else {
            self.dropped = Dropped::MAX;
            return;
        };
        let mut limit = own.with_numbers(&limit_of(numbers));
        if limit.quota.period() != own.quota.period() {
            // Not a sibling: callers choose periods, and there are many.
            hasher.number(own.discriminator);
            hasher.number(limit.quota.period().as_nanos());
            self.name = hasher.finish();
            (limit.version, limit.history) = (0, Arc::default());
        }
        self.override_limit = Some(Box::new(limit));
    }

    /// An override counts under the descriptor's entries and its own period: it shares the rule's
    /// counter when the periods agree, as in the reference, and has one of its own otherwise.
    fn count_by_override(
        &mut self,
        limit: Override,
        matched: Option<&Match<'_>>,
        entries: &[Entry<'_>],
        mut hasher: KeyHasher,
    ) {
        let mut limit = limit_of(limit);
        for entry in entries {
            hasher.text(entry.key);
            hasher.text(entry.value);
        }
        let rule_limit = matched.and_then(shareable);
        let same_period = rule_limit.filter(|rule| rule.quota.period() == limit.quota.period());
        if let Some(rule) = same_period {
            limit.version = rule.version;
            limit.history = Arc::clone(&rule.history);
        } else {
            // Never 0, which would be the length of an empty text.
            hasher.number(limit.quota.period().as_nanos());
        }
        self.name = hasher.finish();
        self.override_limit = Some(Box::new(limit));
    }
}

/// The single clock-aligned window of a rule whose counter is named by the plain entries.
fn shareable<'r>(matched: &Match<'r>) -> Option<&'r Limit> {
    let rule: &'r Arc<Rule> = matched.rule;
    let [limit] = rule.limits.as_slice() else {
        return None;
    };
    let plain = matched
        .steps
        .iter()
        .all(|step| !step.is_shared() && step.node.mask.is_none());
    let clock = limit.algorithm == Algorithm::FixedWindow(Anchor::Clock);
    (plain && clock && limit.discriminator == 0).then_some(limit)
}

fn limit_of(limit: Override) -> Limit {
    let multiplier = limit.unit_multiplier.max(1);
    let period = limit.unit.span().saturating_mul(u64::from(multiplier));
    let units = u64::from(limit.requests_per_unit);
    Limit {
        shown: Shown {
            requests_per_unit: limit.requests_per_unit,
            unit: Some(limit.unit),
            unit_multiplier: multiplier,
        },
        ..Limit::new(
            Algorithm::FixedWindow(Anchor::Clock),
            Quota::window(units, period),
        )
    }
}

/// Drops every limit whose name another matched limit of the request replaces. Names are
/// collected from all matched rules first, also from those that are dropped themselves: two
/// that replace each other are both dropped. Unlimited rules and overrides are never dropped.
#[cold]
fn drop_replaced(resolved: &mut Resolved<'_>, all_are_quota: bool) {
    let names: SmallVec<[&str; 4]> = resolved
        .iter()
        .filter_map(Touched::rule)
        .flat_map(|rule| rule.replaces.iter().map(|name| &**name))
        .collect();
    for touched in resolved {
        let Some(rule) = touched.rule() else { continue };
        if touched.asks_nothing() {
            continue;
        }
        let named = |name: Option<&str>| name.is_some_and(|name| names.contains(&name));
        let concurrency = rule.concurrency.as_ref().and_then(|c| c.name.as_deref());
        if named(concurrency) {
            touched.permits = None;
        }
        for (place, limit) in rule.limits.iter().enumerate().take(MOST_LIMITS) {
            if named(limit.name.as_deref()) {
                touched.dropped |= 1 << place;
            }
        }
        if touched.asks_nothing() {
            // As if nothing had matched.
            touched.matched = None;
            touched.role = if all_are_quota {
                Role::Quota
            } else {
                Role::Enforced
            };
        }
    }
}
