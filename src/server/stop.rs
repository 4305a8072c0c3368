//! How the process stops: in phases, with a deadline, and it says which way it went.

use std::{future::pending, io};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::task_tracker::TaskTrackerToken,
};

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every connection was finished in peace.
    Drained,
    /// The deadline, or a second signal, cut this many connections.
    DeadlinePassed {
        /// Connections that were still open.
        left: usize,
    },
}

/// The words that say stop. Clones hear the same words.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopping {
    /// Let no more connections in.
    pub(super) accept: CancellationToken,
    /// Take nothing new, finish what runs.
    pub(super) drain: CancellationToken,
    /// Let go of everything.
    pub(super) cut: CancellationToken,
}

impl Stopping {
    /// Hears what this one hears, and nobody but its clones waits in its queue.
    pub(super) fn child(&self) -> Self {
        Self {
            accept: self.accept.child_token(),
            drain: self.drain.child_token(),
            cut: self.cut.child_token(),
        }
    }
}

/// SIGTERM and SIGINT, counted: the first one stops, the second one hurries.
#[derive(Debug)]
pub struct StopSignals {
    term: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Takes both signals over. From here on they no longer end the process by themselves.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next of them and names it.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.term.recv() => "SIGTERM",
            Some(()) = self.interrupt.recv() => "SIGINT",
            else => pending().await,
        }
    }
}

/// Says, by being dropped, that the worker has ended: in peace or by a panic.
pub(super) struct Life {
    pub(super) _alive: TaskTrackerToken,
    pub(super) _ended: DropGuard,
}
