//! Where states live: one atomic decision over all counters that a request touches.

mod charges;
pub mod connections;
mod decided;
pub mod fallback;
pub mod fleet;
pub mod lease;
pub mod leases;
pub mod memory;
pub mod redis;
pub mod state;

use std::sync::Arc;

use crate::{
    model::{
        key::CounterKey,
        time::{Now, Span},
    },
    rules::Domain,
    store::{fallback::SharedStore, memory::MemoryStore, redis::StoreError},
};

pub use self::{
    charges::{Charge, Charges, Outcomes, Role, Terms},
    decided::{Decided, Degraded},
};

/// Where counters live.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process.
    Memory(Arc<MemoryStore>),
    /// In a store that all replicas share.
    Shared(Arc<SharedStore>),
}

impl Store {
    /// Decides all charges of one request to `domain`. A shared store is waited for at most half of
    /// the caller's `timeout`.
    pub async fn decide(
        &self,
        domain: &Domain,
        charges: &Charges<'_>,
        now: Now,
        timeout: Option<Span>,
    ) -> Decided {
        match self {
            Self::Memory(memory) => memory.decide(charges, now.wall).into(),
            Self::Shared(shared) => shared.decide(domain, charges, now, timeout).await,
        }
    }

    /// What [`Store::decide`] would say if all charges were asked for together; takes nothing.
    pub async fn look(&self, domain: &Domain, charges: &Charges<'_>, now: Now) -> Decided {
        match self {
            Self::Memory(memory) => memory.look(charges, now.wall).into(),
            Self::Shared(shared) => shared.look(domain, charges, now).await,
        }
    }

    /// Forgets counters of `domain`; says how many there were.
    pub async fn reset(&self, domain: &Domain, keys: &[CounterKey]) -> Result<u64, StoreError> {
        let memory = self.memory();
        let here = keys.iter().filter(|key| memory.reset(**key)).count();
        match self {
            Self::Memory(_) => Ok(u64::try_from(here).unwrap_or(u64::MAX)),
            Self::Shared(shared) => {
                shared
                    .redis()
                    .reset(&domain.name, domain.spread, keys)
                    .await
            }
        }
    }

    /// The counters in this process; with a shared store those that stand in for it.
    pub fn memory(&self) -> &Arc<MemoryStore> {
        match self {
            Self::Memory(memory) => memory,
            Self::Shared(shared) => shared.memory(),
        }
    }

    /// The shared store, if there is one.
    pub fn shared(&self) -> Option<&Arc<SharedStore>> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }
}

impl From<MemoryStore> for Store {
    fn from(memory: MemoryStore) -> Self {
        Self::Memory(Arc::new(memory))
    }
}

impl From<SharedStore> for Store {
    fn from(shared: SharedStore) -> Self {
        Self::Shared(Arc::new(shared))
    }
}
