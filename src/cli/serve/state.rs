//! `--state`: read at start, written every few seconds and at the stop.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{self, JoinHandle},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::settings::{Settings, StateSettings},
    engine::Engine,
    model::{key::KeySecret, time::Clock},
    store::{
        memory::MemoryStore,
        state::{Broken, Restored, StateError, StateFile},
    },
};

/// What a life of the server begins with.
pub(super) struct Opened {
    pub(super) memory: MemoryStore,
    /// Names counters.
    pub(super) secret: KeySecret,
    /// What the life before left, if anything.
    pub(super) restored: Option<Restored>,
    /// None: nothing is kept.
    pub(super) keeper: Option<Keeper>,
}

/// Reads the state file, if one is wanted and there.
pub(super) fn open(settings: &Settings, clock: &Clock) -> Result<Opened, StateError> {
    let memory = MemoryStore::new(settings.memory);
    // Replicas that share a store name counters alike; else the file says how they were named.
    let shared = settings.shared.as_ref().map(|shared| shared.secret);
    let Some(state) = &settings.state else {
        return Ok(Opened {
            memory,
            secret: shared.unwrap_or_else(KeySecret::random),
            restored: None,
            keeper: None,
        });
    };
    let file = StateFile::take(&state.path)?;
    let (memory, restored) = match read(&file, state, &memory, shared, clock) {
        Ok(restored) => (memory, restored),
        Err(error @ StateError::Broken { .. }) if state.ignore_broken => {
            tracing::warn!("{error}: beginning anew");
            // It may have been filled half.
            (MemoryStore::new(settings.memory), None)
        }
        Err(error) => return Err(error),
    };
    let known = restored.as_ref().map(|restored| restored.snapshot.secret);
    let secret = shared.or(known).unwrap_or_else(KeySecret::random);
    Ok(Opened {
        memory,
        secret,
        restored,
        keeper: Some(Keeper {
            file,
            every: state.every,
            secret,
        }),
    })
}

fn read(
    file: &StateFile,
    settings: &StateSettings,
    memory: &MemoryStore,
    shared: Option<KeySecret>,
    clock: &Clock,
) -> Result<Option<Restored>, StateError> {
    let now = clock.now().wall;
    let Some(restored) = file.read(memory, now)? else {
        tracing::info!(file = %settings.path.display(), "no state yet");
        return Ok(None);
    };
    let snapshot = &restored.snapshot;
    if shared.is_some_and(|secret| secret != snapshot.secret) {
        return Err(StateError::Broken {
            path: settings.path.clone(),
            why: Broken::Secret,
        });
    }
    let books = snapshot.leases.books.iter();
    let ahead = now.until(snapshot.written);
    if !ahead.is_zero() {
        tracing::warn!(?ahead, "the state was written at a later date than today's");
    }
    tracing::info!(
        file = %settings.path.display(),
        age = ?now.since(snapshot.written),
        clean = snapshot.is_clean,
        counters = restored.counters,
        leases = books.map(|book| book.saved.leases.len()).sum::<usize>(),
        "state read"
    );
    Ok(Some(restored))
}

/// Writes the state file.
pub(super) struct Keeper {
    file: StateFile,
    every: Duration,
    secret: KeySecret,
}

/// A [`Keeper`] at work.
pub(super) struct Keeping {
    stop: CancellationToken,
    task: JoinHandle<()>,
    keeper: Arc<Keeper>,
    engine: Arc<Engine>,
}

impl Keeper {
    /// Writes the file now, so that the number of this life is taken and a place that cannot be
    /// written to is found out, and then again and again.
    pub(super) fn begin(self, engine: Arc<Engine>) -> Result<Keeping, StateError> {
        self.write(&engine, false)?;
        let stop = CancellationToken::new();
        let keeper = Arc::new(self);
        let task = task::spawn(keep(Arc::clone(&keeper), Arc::clone(&engine), stop.clone()));
        Ok(Keeping {
            stop,
            task,
            keeper,
            engine,
        })
    }

    fn write(&self, engine: &Engine, is_clean: bool) -> Result<(), StateError> {
        engine.save(&self.file, self.secret, is_clean)
    }
}

impl Keeping {
    /// Writes the last word of this life. To be called when nothing is decided any more.
    pub(super) async fn end(self) {
        self.stop.cancel();
        // A write that has begun is finished; a panic of it was told already.
        let _ = self.task.await;
        match self.keeper.write(&self.engine, true) {
            Ok(()) => tracing::info!("state written"),
            Err(error) => tracing::error!("{error}; what was counted since the last write is lost"),
        }
    }
}

/// Until `stop`. Off the threads that serve: a write waits for the disk.
async fn keep(keeper: Arc<Keeper>, engine: Arc<Engine>, stop: CancellationToken) {
    while stop
        .run_until_cancelled(sleep(keeper.every))
        .await
        .is_some()
    {
        let (keeper, engine) = (Arc::clone(&keeper), Arc::clone(&engine));
        let written = task::spawn_blocking(move || keeper.write(&engine, false)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("{error}; the state on disk grows old"),
            Err(error) => tracing::error!("bug: writing the state: {error}"),
        }
    }
}
