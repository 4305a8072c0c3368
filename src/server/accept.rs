//! Takes connections and hands each to the worker with the fewest.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    arrival::{Arrival, Handed},
    listen::{Accepting, Socket},
    stats::Stats,
};
use crate::{model::time::Clock, telemetry::logging::Throttle};

/// How long to wait when the process is out of file descriptors: some will be given back.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// Connections that are still taken after the stop: as many as the kernel holds for us.
const LATE_GUESTS: usize = 4096;

/// What the acceptor works with.
pub(super) struct Acceptor {
    pub(super) listener: Accepting,
    pub(super) door: Door,
    pub(super) clock: Clock,
}

/// Where accepted connections go.
pub(super) enum Door {
    /// To the workers.
    Open(Handover),
    /// To the thread of [`handshake`](super::handshake)s.
    Tls(mpsc::Sender<Socket>),
}

/// Hands connections to workers.
pub(super) struct Handover {
    pub(super) workers: Vec<mpsc::Sender<Handed>>,
    pub(super) stats: Arc<Stats>,
    pub(super) max_connections: usize,
    pub(super) clock: Clock,
    pub(super) full: Throttle,
}

impl Acceptor {
    /// Accepts until told to stop; then the listener is closed and the workers learn that nothing
    /// more comes.
    pub(super) async fn run(self, stop: CancellationToken) {
        let broken = Throttle::default();
        // Who knocked before the door closes is let in: its first calls may be sent already.
        // Not without end, though: others go on knocking.
        let mut late = LATE_GUESTS;
        while late > 0 {
            late -= usize::from(stop.is_cancelled());
            let accepted = tokio::select! {
                biased;
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            match accepted {
                Ok(socket) => match &self.door {
                    Door::Open(handover) => handover.hand_over(Arrival::Plain(socket)).await,
                    // Fails when the thread fell over, and the process ends because of that.
                    Door::Tls(handshakes) => drop(handshakes.send(socket).await),
                },
                Err(error) => {
                    if let Some(more) = broken.pass(self.clock.now().steady) {
                        tracing::warn!(%error, more, "cannot accept a gRPC connection");
                    }
                    if !is_about_the_guest(&error) {
                        sleep(OUT_OF_DESCRIPTORS).await;
                    }
                }
            }
        }
    }
}

impl Handover {
    /// To the worker with the fewest; one too many is closed.
    pub(super) async fn hand_over(&self, arrival: Arrival) {
        let (fewest, open) = self.stats.fewest();
        if open >= self.max_connections {
            self.stats.refused.fetch_add(1, Ordering::Relaxed);
            if let Some(more) = self.full.pass(self.clock.now().steady) {
                tracing::warn!(
                    open,
                    more,
                    "gRPC connection closed: max-connections are open already"
                );
            }
            return;
        }
        if let Some(worker) = self.workers.get(fewest) {
            let handed = (arrival, self.stats.opened(fewest));
            // Fails when the worker fell over, and the process ends because of that.
            let _ = worker.send(handed).await;
        }
    }
}

/// The guest went away between knocking and being let in: no reason to pause.
fn is_about_the_guest(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NotConnected
            | io::ErrorKind::InvalidInput
    )
}
