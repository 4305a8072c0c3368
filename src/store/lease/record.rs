//! Leases, alive and ended, and how they are found.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::{EndedBy, LeaseId, Peer},
        time::{Span, Timestamp},
    },
    rules::concurrency::RefundOn,
    store::lease::{
        ask::{Naming, Ticket},
        session::SessionId,
    },
};

/// Permits of one key, as a request asked for them and as it got them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Held {
    pub(super) key: CounterKey,
    pub(super) permits: u64,
    pub(super) asked: u64,
    /// Permits in flight right after the grant, its own included.
    pub(super) in_flight: u64,
}

/// A live lease.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) holder: Arc<str>,
    pub(super) instance: Arc<str>,
    /// Sorted by key.
    pub(super) held: SmallVec<[Held; 2]>,
    pub(super) granted: Timestamp,
    pub(super) expires: Timestamp,
    /// No renewal reaches beyond.
    pub(super) latest: Timestamp,
    pub(super) request: Option<RequestKey>,
    pub(super) naming: Naming,
    pub(super) session: Option<SessionId>,
    /// It is cut short when the connections of this peer are gone.
    pub(super) peer: Option<Peer>,
    pub(super) tenant: Option<CounterKey>,
    /// When the rate units that hang on it are given back; never also when none do.
    pub(super) refund_on: RefundOn,
    /// How long it was held in an earlier life of the server.
    pub(super) earlier: Span,
    /// Calls that were answered with it and not undone.
    pub(super) claims: u32,
}

impl Lease {
    /// Since the grant, whichever life of the server that was in.
    pub(super) fn age(&self, now: Timestamp) -> Span {
        self.earlier.saturating_add(now.since(self.granted))
    }
}

/// What is remembered of an ended lease.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) id: LeaseId,
    pub(super) holder: Arc<str>,
    pub(super) by: EndedBy,
    /// When its time was over, whoever noticed when.
    pub(super) expires: Timestamp,
    /// When its end was noticed.
    pub(super) noticed: Timestamp,
    request: Option<RequestKey>,
    name: Option<(CounterKey, CounterKey)>,
}

/// A request id within its holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::store) struct RequestKey(SmallVec<[u8; 48]>);

impl RequestKey {
    /// None for an empty id: such a request is not replayable.
    pub(super) fn new(holder: &str, id: &[u8]) -> Option<Self> {
        if id.is_empty() {
            return None;
        }
        // The id is the last part and the length of the first is told: no two pairs meet.
        let mut bytes = SmallVec::from_slice(&(holder.len() as u64).to_le_bytes());
        bytes.extend_from_slice(holder.as_bytes());
        bytes.extend_from_slice(id);
        Some(Self(bytes))
    }

    /// A key that was kept as bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }

    pub(in crate::store) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It has, or had, the lease of this sequence.
    Lease(u64),
    /// It waits.
    Waits(Ticket),
}

/// All leases of a book.
#[derive(Debug, Default)]
pub(super) struct Records {
    live: HashMap<u64, Lease>,
    by_expiry: BTreeSet<(Timestamp, u64)>,
    ended: HashMap<u64, Ended>,
    pub(super) requests: HashMap<RequestKey, Known>,
    /// By key and name within it.
    names: HashMap<(CounterKey, CounterKey), u64>,
    holders: BTreeMap<Arc<str>, HolderCount>,
}

/// Leases of one holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HolderCount {
    /// Held now.
    pub live: u64,
    /// Ever granted.
    pub granted: u64,
    /// Ended by their TTL: never given back.
    pub expired: u64,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&Lease> {
        self.live.get(&sequence)
    }

    pub(super) fn get_mut(&mut self, sequence: u64) -> Option<&mut Lease> {
        self.live.get_mut(&sequence)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.live.values()
    }

    /// A live lease by its full id.
    pub(super) fn find(&self, id: &LeaseId) -> Option<&Lease> {
        self.live.get(&id.sequence).filter(|lease| lease.id == *id)
    }

    /// An ended lease by its full id.
    pub(super) fn find_ended(&self, id: &LeaseId) -> Option<&Ended> {
        self.ended.get(&id.sequence).filter(|ended| ended.id == *id)
    }

    pub(super) fn ended(&self, sequence: u64) -> Option<&Ended> {
        self.ended.get(&sequence)
    }

    /// The lease, alive or ended, that has this name in this key.
    pub(super) fn named(&self, key: CounterKey, name: CounterKey) -> Option<u64> {
        self.names.get(&(key, name)).copied()
    }

    /// The earliest expiry.
    pub(super) fn next_expiry(&self) -> Option<(Timestamp, u64)> {
        self.by_expiry.first().copied()
    }

    pub(super) fn insert(&mut self, lease: Lease) {
        let sequence = lease.id.sequence;
        self.by_expiry.insert((lease.expires, sequence));
        if let Some(request) = &lease.request {
            self.requests
                .insert(request.clone(), Known::Lease(sequence));
        }
        if let Some(name) = name_of(&lease) {
            self.names.insert(name, sequence);
        }
        let count = self.holders.entry(Arc::clone(&lease.holder)).or_default();
        count.live += 1;
        count.granted += 1;
        self.live.insert(sequence, lease);
    }

    /// Takes a lease out. What is known under its names stays until [`Records::forget`].
    pub(super) fn remove(&mut self, sequence: u64, expired: bool) -> Option<Lease> {
        let lease = self.live.remove(&sequence)?;
        self.by_expiry.remove(&(lease.expires, sequence));
        if let Some(count) = self.holders.get_mut(&lease.holder) {
            count.live = count.live.saturating_sub(1);
            count.expired += u64::from(expired);
            if count.live == 0 && count.expired == 0 {
                self.holders.remove(&lease.holder);
            }
        }
        Some(lease)
    }

    /// Remembers how a lease ended.
    pub(super) fn remember(&mut self, lease: &Lease, by: EndedBy, noticed: Timestamp) {
        let ended = Ended {
            id: lease.id,
            holder: Arc::clone(&lease.holder),
            by,
            expires: lease.expires,
            noticed,
            request: lease.request.clone(),
            name: name_of(lease),
        };
        self.ended.insert(lease.id.sequence, ended);
    }

    /// Forgets an ended lease and its names.
    pub(super) fn forget(&mut self, sequence: u64) {
        if let Some(ended) = self.ended.remove(&sequence) {
            self.forget_names(sequence, ended.request.as_ref(), ended.name);
        }
    }

    /// As if a lease that was taken out had never been.
    pub(super) fn undo(&mut self, lease: &Lease) {
        self.forget_names(lease.id.sequence, lease.request.as_ref(), name_of(lease));
    }

    fn forget_names(
        &mut self,
        sequence: u64,
        request: Option<&RequestKey>,
        name: Option<(CounterKey, CounterKey)>,
    ) {
        if let Some(request) = request
            && self.requests.get(request) == Some(&Known::Lease(sequence))
        {
            self.requests.remove(request);
        }
        if let Some(name) = name
            && self.names.get(&name) == Some(&sequence)
        {
            self.names.remove(&name);
        }
    }

    /// Moves a lease to another expiry; its former one.
    pub(super) fn set_expiry(&mut self, sequence: u64, expires: Timestamp) -> Option<Timestamp> {
        let lease = self.live.get_mut(&sequence)?;
        let before = std::mem::replace(&mut lease.expires, expires);
        self.by_expiry.remove(&(before, sequence));
        self.by_expiry.insert((expires, sequence));
        Some(before)
    }

    pub(super) fn set_session(&mut self, sequence: u64, session: Option<SessionId>) {
        if let Some(lease) = self.live.get_mut(&sequence) {
            lease.session = session;
        }
    }

    /// One more call was answered with this lease.
    pub(super) fn claim(&mut self, sequence: u64) {
        if let Some(lease) = self.live.get_mut(&sequence) {
            lease.claims = lease.claims.saturating_add(1);
        }
    }

    /// One of the calls that were answered with it is undone; how many are left.
    pub(super) fn disclaim(&mut self, sequence: u64) -> Option<u32> {
        let lease = self.live.get_mut(&sequence)?;
        lease.claims = lease.claims.saturating_sub(1);
        Some(lease.claims)
    }

    pub(super) fn holder(&self, holder: &str) -> HolderCount {
        self.holders.get(holder).copied().unwrap_or_default()
    }

    /// The name of a holder, shared.
    pub(super) fn share(&self, holder: &Arc<str>) -> Arc<str> {
        let known = self.holders.get_key_value(holder);
        Arc::clone(known.map_or(holder, |(known, _)| known))
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = (&Arc<str>, &HolderCount)> {
        self.holders.iter()
    }

    /// Drops counts of holders without leases until at most `most` are left.
    pub(super) fn shrink_holders(&mut self, most: usize) {
        if self.holders.len() > most {
            self.holders.retain(|_, count| count.live > 0);
        }
    }
}

fn name_of(lease: &Lease) -> Option<(CounterKey, CounterKey)> {
    let Naming::Named(name) = lease.naming else {
        return None;
    };
    Some((lease.held.first()?.key, name))
}
