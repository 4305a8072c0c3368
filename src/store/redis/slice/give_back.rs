//! What is left of a block goes back to Redis.
//!
//! As a refund, in a message of its own kind: one for a fixed window is void once the window has
//! ended, so that it never frees anything in the next one. It is sent once and never again: nobody
//! knows whether an unanswered one was decided, and twice would be over the limit.

use std::sync::Arc;

use tokio::{select, task::JoinSet, time::sleep};

use crate::store::{
    charges::{Charge, Charges},
    redis::{
        lanes,
        shared::Shared,
        slice::{Rest, TICK, Taken},
        stats::Stat,
    },
};

/// Gives back what is left of these blocks when they have been held long enough.
pub(in crate::store::redis) fn later(shared: &Arc<Shared>, taken: impl IntoIterator<Item = Taken>) {
    for taken in taken {
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            select! {
                () = sleep(taken.hold.into()) => {}
                () = shared.stop.cancelled() => return,
            }
            if let Some(rest) = shared.slices.take_back(&taken) {
                give_back(&shared, rest).await;
            }
        });
    }
}

/// Takes no more blocks and gives back all that are held.
pub(in crate::store::redis) async fn all(shared: &Arc<Shared>) {
    let mut returns = JoinSet::new();
    for rest in shared.slices.close() {
        let shared = Arc::clone(shared);
        returns.spawn(async move { give_back(&shared, rest).await });
    }
    while returns.join_next().await.is_some() {}
}

/// Sends units back, once.
pub(in crate::store::redis) async fn give_back(shared: &Arc<Shared>, rest: Rest) {
    let charge = Charge {
        refund: true,
        ..Charge::new(rest.key, &rest.limit, rest.units)
    };
    let charges = Charges::from(charge);
    let now = shared.store_clock(shared.clock.now());
    let latest = rest.end.map(|end| end - TICK);
    let lane = lanes::of_this_thread(shared);
    let sent = lane.enqueue_until(&charges, &rest.tag, now, latest);
    let landed = match &sent {
        Ok((flight, _)) => flight.landed().await.is_ok(),
        Err(_) => false,
    };
    shared.stats.add(
        if landed {
            Stat::SliceUnitsReturned
        } else {
            Stat::SliceUnitsLost
        },
        rest.units,
    );
}
