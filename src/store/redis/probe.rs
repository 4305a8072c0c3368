//! Is Redis there? Asked by doing what requests do, on a counter of its own.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    select,
    time::{sleep, timeout},
};

use crate::{
    model::{
        key::CounterKey,
        limit::{Algorithm, Anchor, Quota},
        time::Span,
    },
    rules::limit::Limit,
    store::{
        charges::{Charge, Charges},
        redis::{batch::Wanted, error::StoreError, key::HashTag, lanes, shared::Shared},
    },
};

/// How often while all is well.
const CALM: Duration = Duration::from_secs(1);
/// How often after a failure, doubled from the first to the last.
const FIRST: Duration = Duration::from_millis(10);
const LAST: Duration = Duration::from_millis(250);

/// What the latest probe found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The store decided the probe in time.
    pub is_up: bool,
    /// Why not; none before the first probe.
    pub error: Option<String>,
}

/// Probes until the store is gone; closes the breakers when it gets through.
pub(super) async fn run(shared: Arc<Shared>, health: Arc<Mutex<Health>>) {
    select! {
        () = watch(&shared, &health) => {}
        () = shared.stop.cancelled() => {}
    }
}

async fn watch(shared: &Arc<Shared>, health: &Mutex<Health>) {
    let home = HashTag::new(&shared.options.prefix, "porteiro-probe");
    let mut pause = FIRST;
    loop {
        let mut found = probe(shared, &home).await;
        let mut open = false;
        for tag in shared.open_tags() {
            match probe(shared, &tag).await {
                Ok(()) => {
                    shared.succeeded(&tag);
                    tracing::info!("the shared store answers again");
                }
                Err(error) => {
                    open = true;
                    found = found.and(Err(error));
                }
            }
        }
        let is_up = found.is_ok();
        if is_up {
            shared.forget_error();
        }
        *health.lock() = Health {
            is_up,
            error: found
                .err()
                .map(|kind| shared.last_error().unwrap_or_else(|| kind.to_string())),
        };
        if is_up && !open {
            pause = FIRST;
            select! {
                () = sleep(CALM) => {}
                () = shared.opened.notified() => sleep(FIRST).await,
            }
        } else {
            sleep(pause).await;
            pause = (pause * 2).min(LAST);
        }
    }
}

async fn probe(shared: &Arc<Shared>, tag: &HashTag) -> Result<(), StoreError> {
    let limit = limit();
    let charge = Charge {
        shadow: true,
        ..Charge::new(CounterKey::from_bits(u128::MAX), &limit, 1)
    };
    let charges = Charges::from(charge);
    let lane = lanes::of_this_thread(shared);
    let (flight, _) = lane.enqueue(
        &charges,
        tag,
        Wanted::Decision,
        shared.store_clock(shared.clock.now()),
    )?;
    let landed = timeout(shared.options.deadline.into(), flight.landed());
    match landed.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(*error),
        Err(_) => Err(StoreError::Timeout),
    }
}

/// One a second, counted and never refused for real: a write that leaves nothing behind.
fn limit() -> Limit {
    let quota = Quota::per(1, Span::from_secs(1));
    let quota = quota.unwrap_or_else(|_| unreachable!("a second is a period"));
    Limit::new(Algorithm::FixedWindow(Anchor::LastHit), quota)
}
