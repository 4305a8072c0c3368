//! Over restarts: what the engine hands to its successor.

use std::sync::Arc;

use super::{Engine, Installed};
use crate::{
    model::key::KeySecret,
    rules::Rules,
    store::state::{Restored, Snapshot, StateError, StateFile},
};

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
        file.write(&snapshot, self.store.memory(), past)
    }
}
