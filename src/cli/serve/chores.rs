//! What is done beside the calls, for as long as the process lives.

use std::{sync::Arc, time::Duration};

use tokio::{task, time::sleep};

use crate::{engine::Engine, model::time::Span, telemetry::names};

/// Begins all of it.
pub(super) fn begin(engine: &Arc<Engine>) {
    task::spawn(sweep(Arc::clone(engine)));
    task::spawn(drive(Arc::clone(engine)));
    task::spawn(name(Arc::clone(engine)));
    task::spawn(watch(Arc::clone(engine)));
}

/// Frees counters that are as good as fresh, a few shards at a time: all of them within a minute,
/// and never a lock for long.
async fn sweep(engine: Arc<Engine>) {
    const PAUSE: Duration = Duration::from_millis(100);
    const SHARE: usize = 512;
    const LEASE_KEYS: usize = 64;
    let memory = engine.store().memory();
    let shards = memory.shards();
    let mut next = 0;
    loop {
        sleep(PAUSE).await;
        let now = engine.clock().now().wall;
        engine.leases().sweep(LEASE_KEYS, engine.clock().now());
        for _ in 0..shards.div_ceil(SHARE) {
            memory.sweep(next, now);
            next = (next + 1) % shards;
        }
    }
}

/// Serves who waits for permits when leases end that nobody gives back.
async fn drive(engine: Arc<Engine>) {
    engine.leases().drive(engine.clock()).await;
}

/// Gives the names of statistics to whoever has the most traffic.
async fn name(engine: Arc<Engine>) {
    loop {
        sleep(names::TURN.into()).await;
        engine.paths().names().turn();
    }
}

/// How often the store is asked how limits on work in flight stand, for the metrics.
const WATCH: Span = Span::from_secs(5);

/// Keeps the metrics of limits in the shared store fresh.
async fn watch(engine: Arc<Engine>) {
    engine.leases().watch(WATCH).await;
}
