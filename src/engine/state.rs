//! Over restarts: what the engine hands to its successor.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{Engine, Installed};
use crate::{
    model::{
        key::KeySecret,
        time::{Span, Timestamp},
    },
    rules::Rules,
    store::state::{Restored, Snapshot, StateError, StateFile},
};

/// How the state file stands.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The date of the latest whole file, in nanoseconds; 0: none in this life.
    at: AtomicU64,
    /// Its length.
    bytes: AtomicU64,
    /// Writes that failed.
    failures: AtomicU64,
}

impl Written {
    fn note(&self, at: Timestamp, written: &Result<u64, StateError>) {
        match written {
            Ok(bytes) => {
                self.bytes.store(*bytes, Ordering::Relaxed);
                self.at.store(at.as_nanos(), Ordering::Relaxed);
            }
            Err(_) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Age and length of the file, and how many writes failed; none when none is kept.
    pub(super) fn read(&self, now: Timestamp) -> Option<(Span, u64, u64)> {
        let at = Timestamp::from_nanos(self.at.load(Ordering::Relaxed));
        let failures = self.failures.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        (at > Timestamp::ZERO).then(|| (now.since(at), bytes, failures))
    }
}

impl Engine {
    /// Takes over what the life before saved; its counters are in the store already. To be called
    /// before the first rules are installed.
    pub fn follow(&mut self, restored: Restored) {
        self.leases.follow(&restored.snapshot, self.clock.now());
        self.installed.store(Arc::new(Installed {
            rules: Arc::new(Rules::remembering(restored.past)),
            ..Installed::default()
        }));
    }

    /// Writes everything that has to survive a restart; blocks on the disk. `secret` is that of the
    /// engine's hasher, `is_clean` says that nothing is decided any more.
    ///
    /// # Errors
    /// The file is as it was.
    pub fn save(
        &self,
        file: &StateFile,
        secret: KeySecret,
        is_clean: bool,
    ) -> Result<(), StateError> {
        let leases = self.leases.save(self.clock.now());
        let snapshot = Snapshot {
            written: self.clock.now().wall,
            is_clean,
            secret,
            leases,
        };
        // The rules last: see `state::write`.
        let past = || self.installed.load().rules().past();
        let written = file.write(&snapshot, self.store.memory(), past);
        self.written.note(snapshot.written, &written);
        written.map(|_| ())
    }
}
