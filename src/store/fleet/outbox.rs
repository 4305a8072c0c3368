//! What the store has to be told sooner or later: that leases ended whose caller does not wait for
//! the answer. Each message may arrive twice without harm.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, time::sleep};

use crate::{
    model::time::{Span, Timestamp},
    store::{
        fleet::Fleet,
        redis::{StoreError, lease::Message},
    },
};

/// Most messages; beyond that the oldest is dropped, and its leases end by their time.
const MOST: usize = 10_000;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a message is tried; a lease of the longest life has ended by then.
const TRIED: Span = Span::from_secs(600);

/// Messages on their way.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: Mutex<VecDeque<(Timestamp, Message)>>,
    running: AtomicBool,
}

impl Fleet {
    /// Sends a message in the background, again and again until it arrived. Needs no runtime; where
    /// there is none, the next one that has takes it along.
    pub(super) fn post(self: &Arc<Self>, message: Message) {
        let outbox = &self.outbox;
        {
            let mut queue = outbox.queue.lock();
            if queue.len() >= MOST {
                queue.pop_front();
            }
            queue.push_back((self.clock.now().steady, message));
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !outbox.running.swap(true, Ordering::AcqRel) {
            runtime.spawn(deliver(Running(Arc::clone(self))));
        }
    }
}

/// The task that delivers; another one may start when it ends, however it does.
struct Running(Arc<Fleet>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.outbox.running.store(false, Ordering::Release);
    }
}

async fn deliver(running: Running) {
    let fleet = &running.0;
    loop {
        let next = fleet.outbox.queue.lock().front().cloned();
        let Some((since, message)) = next else { return };
        let sent = fleet
            .redis()
            .call(&fleet.domain, &message, Span::MAX, || ())
            .await;
        let old = since + TRIED <= fleet.clock.now().steady;
        match sent {
            Ok(_) => {}
            Err(StoreError::Unexpected) => {
                tracing::warn!("the shared store refused to end leases; they end by their time");
            }
            Err(_) if old => {}
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        }
        fleet.outbox.queue.lock().pop_front();
    }
}
