//! Certificates are read again when their files change.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    task,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Tls, TlsError};
use crate::server::{
    stats::Stats,
    watch::{Survey, Watcher},
};

/// How long the files must be quiet: certificate and key are seldom written at once.
const QUIET: Duration = Duration::from_millis(200);

/// Looks without being told, for file systems that tell nothing.
const POLL: Duration = Duration::from_secs(10);

/// Follows the files until told to stop. A reading that fails keeps what was.
pub(in crate::server) async fn rotate(tls: Arc<Tls>, stats: Arc<Stats>, stop: CancellationToken) {
    let mut watcher = Watcher::new();
    // The files may have changed since they were read at start: the first look reads them again.
    let mut seen = None;
    loop {
        let paths = tls.paths();
        let survey = task::spawn_blocking(move || Survey::of_all(&paths)).await;
        if let Ok(survey) = survey {
            watcher.listen_to(&survey.directories);
            let is_first = seen.is_none();
            if seen.replace(survey.fingerprint) != Some(survey.fingerprint) {
                let again = Arc::clone(&tls);
                let read = task::spawn_blocking(move || again.reload()).await;
                if let Ok(read) = read {
                    tell(read, &stats, is_first);
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = watcher.event() => {
                let silence = async { while timeout(QUIET, watcher.event()).await.is_ok() {} };
                // Files that are always written to are read all the same.
                let _ = timeout(QUIET * 10, silence).await;
            }
            () = sleep(POLL) => {}
        }
    }
}

fn tell(read: Result<(), TlsError>, stats: &Stats, is_first: bool) {
    match read {
        Ok(()) if is_first => {}
        Ok(()) => {
            stats.certificates_read.fetch_add(1, Ordering::Relaxed);
            tracing::info!("certificates read again");
        }
        Err(error) => {
            stats.certificates_refused.fetch_add(1, Ordering::Relaxed);
            tracing::error!("certificates refused, the old ones stay: {error}");
        }
    }
}
