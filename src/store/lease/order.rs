//! A request in the form in which it is decided, kept, and compared.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::{Criticality, Holder, Peer},
        time::{Span, Timestamp},
    },
    store::lease::{
        ask::{Ask, AskError, MAX_ITEMS, MAX_PERMITS, MAX_REQUEST_ID, Naming},
        queue::Rank,
        record::{Held, RequestKey},
        session::SessionId,
    },
};

/// Shortest life of a lease that a caller may ask for.
const MIN_TTL: Span = Span::from_secs(1);

/// A request in canonical form: duplicates added up, keys sorted.
#[derive(Clone, Debug)]
pub(in crate::store) struct Order {
    pub(in crate::store) holder: Holder,
    pub(in crate::store) request: Option<RequestKey>,
    /// Sorted by key; items without a rule are left out.
    pub(in crate::store) items: SmallVec<[OrderItem; 2]>,
    /// For each item of the request its place in `items`.
    pub(in crate::store) places: SmallVec<[Option<usize>; 4]>,
    pub(in crate::store) naming: Naming,
    pub(in crate::store) ttl: Span,
    pub(in crate::store) max_lifetime: Span,
    pub(in crate::store) session: Option<SessionId>,
    /// Of requests whose leases are not issued: whoever was told a lease id may come back.
    pub(super) peer: Option<Peer>,
    pub(in crate::store) tenant: Option<CounterKey>,
    pub(in crate::store) class: Criticality,
    pub(in crate::store) cohort: Option<u8>,
    pub(in crate::store) deadline: Option<Timestamp>,
    /// The tenant is above its fair share of one of the keys.
    pub(in crate::store) above_share: bool,
    /// It holds leases of an earlier life of the server: open to it even after a restart.
    pub(in crate::store) adopting: bool,
}

/// Permits of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct OrderItem {
    pub(in crate::store) key: CounterKey,
    /// To be taken.
    pub(in crate::store) permits: u64,
    /// Asked for.
    pub(in crate::store) asked: u64,
    /// How few would do.
    pub(in crate::store) least: u64,
    /// Nothing has to be taken: the named lease is there, or was released already.
    pub(in crate::store) settled: bool,
}

/// A slot in the virtual queues that a refused request was told.
#[derive(Clone, Debug)]
pub(in crate::store) struct Booking {
    pub(in crate::store) slot: Timestamp,
    /// What was booked, for the case that it is not needed.
    pub(in crate::store) booked: SmallVec<[(CounterKey, Span); 2]>,
    /// When it was told to return.
    pub(in crate::store) told: Timestamp,
}

impl Order {
    pub(in crate::store) fn new(ask: &Ask<'_>) -> Result<Self, AskError> {
        if ask.items.is_empty() {
            return Err(AskError::NoItems);
        }
        if ask.items.len() > MAX_ITEMS {
            return Err(AskError::TooManyItems);
        }
        if ask.request_id.len() > MAX_REQUEST_ID {
            return Err(AskError::RequestIdTooLong);
        }
        if !ask.dry_run && ask.items.iter().any(|item| item.permits == 0) {
            return Err(AskError::NoPermits);
        }
        let mut items: SmallVec<[OrderItem; 2]> = SmallVec::new();
        let (mut ttl, mut max_lifetime) = (Span::MAX, Span::MAX);
        for item in ask.items {
            let Some(rule) = &item.rule else { continue };
            ttl = ttl.min(rule.lease_ttl);
            max_lifetime = max_lifetime.min(rule.max_lifetime);
            // A dry run over nothing asks whether one is left.
            let (permits, least) = (item.permits.max(1), item.least.max(1));
            match items.iter_mut().find(|known| known.key == item.key) {
                Some(known) => {
                    known.permits = known.permits.saturating_add(permits);
                    known.asked = known.permits;
                    known.least = known.least.saturating_add(least);
                }
                None => items.push(OrderItem {
                    key: item.key,
                    permits,
                    asked: permits,
                    least,
                    settled: false,
                }),
            }
        }
        if items.iter().any(|item| item.permits > MAX_PERMITS) {
            return Err(AskError::TooManyPermits);
        }
        items.sort_unstable_by_key(|item| item.key);
        let place = |key| items.iter().position(|item: &OrderItem| item.key == key);
        let places = ask
            .items
            .iter()
            .map(|item| item.rule.as_ref().and_then(|_| place(item.key)))
            .collect();
        let ttl = ask
            .ttl
            .map_or(ttl, |ttl| ttl.max(MIN_TTL))
            .min(max_lifetime);
        Ok(Self {
            request: RequestKey::new(&ask.holder.id, ask.request_id),
            holder: Holder {
                id: Arc::clone(&ask.holder.id),
                instance: Arc::clone(&ask.holder.instance),
            },
            items,
            places,
            naming: ask.naming,
            ttl,
            max_lifetime,
            session: ask.session,
            peer: ask.peer.filter(|_| ask.naming != Naming::Issued),
            tenant: ask.tenant,
            class: ask.criticality,
            cohort: ask.cohort,
            deadline: ask.deadline,
            above_share: false,
            adopting: false,
        })
    }

    /// Who it goes before, and who goes before it.
    pub(in crate::store) fn rank(&self) -> Rank {
        Rank::of(self.class, self.above_share)
    }

    /// Whether it asks for what a lease was asked for.
    pub(in crate::store) fn asks_for(&self, held: &[Held]) -> bool {
        let asked = self.items.iter().map(|item| (item.key, item.asked));
        asked.eq(held.iter().map(|held| (held.key, held.asked)))
    }

    /// Whether it asks for the same as another one.
    pub(in crate::store) fn asks_as(&self, other: &Self) -> bool {
        let asked = |order: &Self| -> SmallVec<[(CounterKey, u64); 2]> {
            order
                .items
                .iter()
                .map(|item| (item.key, item.asked))
                .collect()
        };
        asked(self) == asked(other)
    }
}
