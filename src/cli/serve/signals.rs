//! What the process is told from outside.

use std::{future::pending, io};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task,
};

use crate::server::{Reloads, StopSignals};

/// Resolves at the first SIGTERM or SIGINT, and at the second.
pub(super) fn stop() -> io::Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let mut signals = StopSignals::listen()?;
    let (stop, stopped) = oneshot::channel();
    let (hurry, hurried) = oneshot::channel();
    task::spawn(async move {
        let signal = signals.next().await;
        tracing::info!(signal, "stopping");
        // Fails when the server has ended by itself.
        let _ = stop.send(());
        let signal = signals.next().await;
        tracing::warn!(signal, "stopping at once");
        let _ = hurry.send(());
    });
    let told = async |told: oneshot::Receiver<()>| {
        if told.await.is_err() {
            pending::<()>().await;
        }
    };
    Ok((told(stopped), told(hurried)))
}

/// Has the rules read again at every SIGHUP.
pub(super) fn reload_on_hangup(reloads: Reloads) -> io::Result<()> {
    task::spawn(on_hangup(signal(SignalKind::hangup())?, reloads));
    Ok(())
}

async fn on_hangup(mut hangup: Signal, reloads: Reloads) {
    while hangup.recv().await.is_some() {
        tracing::info!("SIGHUP: reading the rules again");
        reloads.now().await;
    }
}
