//! Where counters live, and whether it is there.

use std::{sync::Arc, time::Duration};

use tokio::{task, time::sleep};

use crate::{
    cli::settings::Settings,
    engine::Engine,
    model::time::Clock,
    server::Health,
    store::{
        Store,
        fallback::{Fallback, SharedStore},
        memory::MemoryStore,
        redis::RedisStore,
    },
};

/// How often the health of the store is looked at; it is probed by itself.
const PAUSE: Duration = Duration::from_millis(100);

/// The shared store before `memory`, if one is named; else `memory` alone.
pub(super) fn open(settings: &Settings, memory: MemoryStore, clock: &Clock) -> Store {
    match &settings.shared {
        None => Store::from(memory),
        Some(shared) => {
            let redis = RedisStore::connect(shared.redis.clone(), clock.clone());
            let fallback = Fallback::new(memory, shared.replicas);
            Store::from(SharedStore::new(redis, fallback))
        }
    }
}

/// Ready only while a shared store answers, and not before it was seen.
pub(super) fn tell_health(engine: &Arc<Engine>, health: &Health) {
    health.store(engine.store().shared().is_none());
    task::spawn(follow(Arc::clone(engine), health.clone()));
}

/// Tells whether the shared store answers; without one there is nothing to tell.
async fn follow(engine: Arc<Engine>, health: Health) {
    let Some(shared) = engine.store().shared() else {
        return;
    };
    // None until the first probe is over.
    let mut told = None;
    loop {
        let seen = shared.redis().health();
        let probed = seen.is_up || seen.error.is_some();
        if probed && told != Some(seen.is_up) {
            health.store(seen.is_up);
            told = Some(seen.is_up);
            match seen.error {
                None => tracing::info!("the shared store answers probes"),
                Some(error) => tracing::warn!(error, "not ready: the shared store is away"),
            }
        }
        sleep(PAUSE).await;
    }
}

/// Gives back what was taken from the shared store ahead of its use. To be called when nothing is
/// decided any more.
pub(super) async fn part(store: &Store) {
    if let Some(shared) = store.shared() {
        shared.redis().return_slices().await;
    }
}
