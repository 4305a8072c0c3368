//! Which lane a thread uses.

use std::{cell::RefCell, sync::Arc};

use crate::store::redis::{lane::Lane, shared::Shared};

thread_local! {
    /// The lanes of this thread, one for each store.
    static LANES: RefCell<Vec<(Arc<Shared>, Arc<Lane>)>> = const { RefCell::new(Vec::new()) };
}

/// This thread's lane to the store; the first call starts it on the present runtime. A worker has
/// one connection of its own, so no two workers ever wait for each other.
pub(super) fn of_this_thread(shared: &Arc<Shared>) -> Arc<Lane> {
    LANES.with_borrow_mut(|lanes| {
        let own =
            |(of, lane): &(Arc<Shared>, Arc<Lane>)| Arc::ptr_eq(of, shared) && !lane.is_gone();
        if let Some((_, lane)) = lanes.iter().find(|entry| own(entry)) {
            return Arc::clone(lane);
        }
        lanes.retain(|(_, lane)| !lane.is_gone());
        let lane = Lane::start(Arc::clone(shared));
        shared.lanes.lock().push(Arc::downgrade(&lane));
        lanes.push((Arc::clone(shared), Arc::clone(&lane)));
        lane
    })
}
