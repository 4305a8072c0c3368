//! From descriptors to the limits they touch, and under which counter keys.

use std::{slice, sync::Arc};

use smallvec::SmallVec;

use crate::{
    model::{
        key::{CounterKey, KeyHasher},
        limit::{Algorithm, Anchor, Quota},
        request::{Descriptor, Override, Request},
    },
    rules::{
        Domain, Stacking,
        limit::{CostUnit, Limit, Shown},
        lookup::Match,
        tree::Rule,
    },
    store::{Charge, Charges, Role},
};

/// What each descriptor of a request touches.
#[derive(Debug)]
pub struct Resolved<'r> {
    /// In the order of the request.
    pub descriptors: SmallVec<[Touched<'r>; 4]>,
}

/// What one descriptor touches.
#[derive(Debug)]
pub struct Touched<'r> {
    /// How the descriptor found its rule; none when nothing matched or an override came along.
    pub matched: Option<Match<'r>>,
    /// The limit that came with the request. It stands in the place of the rule's limits.
    pub override_limit: Option<Limit>,
    /// The limits that apply and their counters: index into [`Touched::limits`], key.
    pub counters: SmallVec<[(usize, CounterKey); 2]>,
    /// What a refusal here means.
    pub role: Role,
    /// A refusal here is only counted.
    pub shadow: bool,
    /// Units asked for.
    pub cost: u64,
    /// The units are given back.
    pub refund: bool,
}

impl<'r> Touched<'r> {
    /// The rule that decides here; none for overrides and when nothing matched.
    pub fn rule(&self) -> Option<&'r Arc<Rule>> {
        let matched = self.matched.as_ref()?;
        self.override_limit.is_none().then_some(matched.rule)
    }

    /// The rule says: no limit, no counting.
    pub fn is_unlimited(&self) -> bool {
        self.rule().is_some_and(|rule| rule.unlimited)
    }

    /// The limits that [`Touched::counters`] points into.
    pub fn limits(&self) -> &[Limit] {
        match &self.override_limit {
            Some(limit) => slice::from_ref(limit),
            None => self
                .matched
                .as_ref()
                .map_or(&[], |matched| &matched.rule.limits),
        }
    }
}

impl Resolved<'_> {
    /// What is asked of the store, in order.
    pub fn charges(&self, stacking: Stacking) -> Charges<'_> {
        let mut charges = Charges {
            stacking,
            ..Charges::default()
        };
        for (descriptor, touched) in self.descriptors.iter().enumerate() {
            if touched.counters.is_empty() && touched.role == Role::Quota {
                charges.quota_passed = true;
            }
            for (index, key) in &touched.counters {
                let Some(limit) = touched.limits().get(*index) else {
                    continue;
                };
                charges.list.push(Charge {
                    key: *key,
                    limit,
                    cost: touched.cost,
                    refund: touched.refund,
                    role: touched.role,
                    shadow: touched.shadow,
                    descriptor,
                });
            }
        }
        charges
    }
}

/// Finds the rule of every descriptor, applies overrides and `replaces`, and names the counters.
pub fn resolve<'r>(
    domain: &'r Domain,
    request: &Request<'_>,
    hasher: &KeyHasher,
    all_are_quota: bool,
) -> Resolved<'r> {
    let mut hasher = hasher.clone();
    hasher.text(&domain.name);
    let mut descriptors: SmallVec<[Touched<'r>; 4]> = SmallVec::new();
    let mut replaces = false;
    for descriptor in &request.descriptors {
        let matched = domain.find(descriptor);
        let touched = match descriptor.limit {
            Some(limit) => by_override(limit, matched, descriptor, &hasher),
            None => by_rule(matched, descriptor, &hasher),
        };
        replaces |= touched.rule().is_some_and(|rule| !rule.replaces.is_empty());
        descriptors.push(Touched {
            role: role(&touched, all_are_quota),
            shadow: touched.rule().is_some_and(|rule| rule.shadow_mode),
            cost: cost(request, descriptor),
            refund: descriptor.is_negative_hits,
            ..touched
        });
    }
    let mut resolved = Resolved { descriptors };
    if replaces {
        resolved.drop_replaced(all_are_quota);
    }
    resolved
}

/// A descriptor's own cost, also 0; else the request's, where 0 means 1.
fn cost(request: &Request<'_>, descriptor: &Descriptor<'_>) -> u64 {
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

fn by_rule<'r>(
    matched: Option<Match<'r>>,
    descriptor: &Descriptor<'_>,
    hasher: &KeyHasher,
) -> Touched<'r> {
    let mut counters = SmallVec::new();
    if let Some(matched) = &matched {
        let mut hasher = hasher.clone();
        for (step, entry) in matched.steps.iter().zip(&descriptor.entries) {
            step.hash(*entry, &mut hasher);
        }
        for (index, limit) in matched.rule.limits.iter().enumerate() {
            let mut hasher = hasher.clone();
            hasher.number(limit.discriminator);
            counters.push((index, hasher.finish()));
        }
    }
    Touched {
        matched,
        override_limit: None,
        counters,
        role: Role::Enforced,
        shadow: false,
        cost: 0,
        refund: false,
    }
}

/// An override counts under the descriptor's entries and its own period: it shares the rule's
/// counter when the periods agree, as in the reference, and has one of its own otherwise.
fn by_override<'r>(
    limit: Override,
    matched: Option<Match<'r>>,
    descriptor: &Descriptor<'_>,
    hasher: &KeyHasher,
) -> Touched<'r> {
    let mut limit = limit_of(limit);
    let rule_limit = matched.as_ref().and_then(shareable);
    let same_period = rule_limit.filter(|rule| rule.quota.period() == limit.quota.period());
    let discriminator = match same_period {
        Some(rule) => {
            limit.version = rule.version;
            rule.discriminator
        }
        // The period itself: never 0, which is the discriminator of a rule's single limit.
        None => limit.quota.period().as_nanos(),
    };
    let mut hasher = hasher.clone();
    for entry in &descriptor.entries {
        hasher.text(entry.key);
        hasher.text(entry.value);
    }
    hasher.number(discriminator);
    Touched {
        matched,
        override_limit: Some(limit),
        counters: [(0, hasher.finish())].into_iter().collect(),
        role: Role::Enforced,
        shadow: false,
        cost: 0,
        refund: false,
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
        name: None,
        algorithm: Algorithm::FixedWindow(Anchor::Clock),
        quota: Quota::window(units, period),
        shown: Shown {
            requests_per_unit: limit.requests_per_unit,
            unit: Some(limit.unit),
            unit_multiplier: multiplier,
        },
        count_denied: true,
        hold: false,
        cost_unit: CostUnit::default(),
        discriminator: 0,
        version: 0,
        history: Arc::default(),
    }
}

impl Resolved<'_> {
    /// Drops every limit whose name another matched limit of the request replaces. Names are
    /// collected from all matched rules first, also from those that are dropped themselves: two
    /// that replace each other are both dropped. Unlimited rules and overrides are never dropped.
    fn drop_replaced(&mut self, all_are_quota: bool) {
        let names: SmallVec<[&str; 4]> = self
            .descriptors
            .iter()
            .filter_map(Touched::rule)
            .flat_map(|rule| rule.replaces.iter().map(|name| &**name))
            .collect();
        for touched in &mut self.descriptors {
            let Some(rule) = touched.rule() else { continue };
            if touched.counters.is_empty() {
                continue;
            }
            touched.counters.retain(|(index, _)| {
                let name = rule
                    .limits
                    .get(*index)
                    .and_then(|limit| limit.name.as_deref());
                !name.is_some_and(|name| names.contains(&name))
            });
            if touched.counters.is_empty() {
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
}
