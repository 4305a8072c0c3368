//! The file itself: verified as a whole before anything is read from it, replaced as a whole.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::{
    MAGIC, Restored, Snapshot, VERSION, read,
    wire::{Checksum, Input, TRAILER, Unreadable},
    write,
};
use crate::{model::time::Timestamp, rules::inherit::Past, store::memory::MemoryStore};

/// Bytes that are verified at a time.
const BLOCK: usize = 64 << 10;

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The machine said no.
    #[error("state file {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// Two processes would overwrite each other's.
    #[error("state file {}: another process uses it", .0.display())]
    InUse(PathBuf),
    /// It cannot be used, and nothing of it was.
    #[error(
        "state file {}: {why}. Nothing of it was used. Move it away, or start with \
         --state-ignore-broken, to begin without what was counted before",
        path.display()
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: Broken,
    },
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// No program of ours wrote it.
    #[error("it is not a state file of porteiro")]
    Foreign,
    /// Another version of this program wrote it.
    #[error("it has format {0}, this program reads format {VERSION}")]
    Version(u32),
    /// Its counters have other names.
    #[error("it was written under another --store-secret-file")]
    Secret,
    /// Something is missing or changed.
    #[error("it is cut short or damaged")]
    Damaged,
    /// It is whole and means nothing.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] Unreadable),
}

/// A state file that this process alone uses.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Held open: its lock ends with the process, however that ends.
    _lock: File,
}

impl StateFile {
    /// Takes the file for this process; it need not be there yet. The lock is a file of its own,
    /// `PATH.lock`, because the state file itself is replaced.
    ///
    /// # Errors
    /// [`StateError::InUse`], and [`StateError::Io`] when nothing can be written there.
    pub fn take(path: &Path) -> Result<Self, StateError> {
        let io = |error| StateError::Io {
            path: path.to_owned(),
            error,
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(beside(path, ".lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }

    /// Reads the state, counters into `memory`; none when there is no file.
    ///
    /// # Errors
    /// See [`StateError`]. Nothing of a broken file is used; `memory` may hold counters of one that
    /// is whole and cannot be read.
    pub fn read(
        &self,
        memory: &MemoryStore,
        now: Timestamp,
    ) -> Result<Option<Restored>, StateError> {
        let io = |error| StateError::Io {
            path: self.path.clone(),
            error,
        };
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let restored = read_verified(file, memory, now).map_err(io)?;
        restored.map(Some).map_err(|why| StateError::Broken {
            path: self.path.clone(),
            why,
        })
    }

    /// Replaces the state, and says how many bytes it has. After a crash of the machine the name
    /// stands for the old file or for the new one.
    ///
    /// # Errors
    /// The old file stays.
    pub fn write(
        &self,
        snapshot: &Snapshot,
        memory: &MemoryStore,
        past: impl FnOnce() -> Vec<Past>,
    ) -> Result<u64, StateError> {
        let error = |error| StateError::Io {
            path: self.path.clone(),
            error,
        };
        self.replace(snapshot, memory, past).map_err(error)
    }

    fn replace(
        &self,
        snapshot: &Snapshot,
        memory: &MemoryStore,
        past: impl FnOnce() -> Vec<Past>,
    ) -> io::Result<u64> {
        let new = beside(&self.path, ".new");
        // Whatever is there is of a life that was killed while writing; its mode may be any.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let to = BufWriter::with_capacity(BLOCK, options.open(&new)?);
        let mut to = write(to, snapshot, memory, past)?;
        to.flush()?;
        to.get_ref().sync_all()?;
        let length = to.get_ref().metadata()?.len();
        fs::rename(&new, &self.path)?;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()?;
        Ok(length)
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Reads a state that was verified from its first byte to its last; counters go into `memory`.
///
/// # Errors
/// The outer ones are the machine's.
pub fn read_verified(
    mut from: impl Read + Seek,
    memory: &MemoryStore,
    now: Timestamp,
) -> io::Result<Result<Restored, Broken>> {
    if let Err(broken) = verify(&mut from)? {
        return Ok(Err(broken));
    }
    let head = u64::try_from(MAGIC.len() + size_of_val(&VERSION)).unwrap_or(0);
    from.seek(SeekFrom::Start(head))?;
    let mut input = Input::new(BufReader::with_capacity(BLOCK, from));
    Ok(read(&mut input, memory, now).map_err(Broken::from))
}

fn verify(from: &mut (impl Read + Seek)) -> io::Result<Result<(), Broken>> {
    let length = from.seek(SeekFrom::End(0))?;
    from.seek(SeekFrom::Start(0))?;
    let mut head = Vec::new();
    from.by_ref()
        .take((MAGIC.len() + size_of_val(&VERSION)) as u64)
        .read_to_end(&mut head)?;
    let Some((magic, version)) = head.split_first_chunk::<{ MAGIC.len() }>() else {
        return Ok(Err(Broken::Foreign));
    };
    if *magic != MAGIC {
        return Ok(Err(Broken::Foreign));
    }
    let Ok(version) = <[u8; 4]>::try_from(version) else {
        return Ok(Err(Broken::Damaged));
    };
    let version = u32::from_le_bytes(version);
    if version != VERSION {
        return Ok(Err(Broken::Version(version)));
    }
    let Some(mut left) = length.checked_sub((head.len() + TRAILER) as u64) else {
        return Ok(Err(Broken::Damaged));
    };
    let mut checksum = Checksum::new();
    checksum.add(&head);
    let mut block = vec![0; BLOCK];
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        from.read_exact(&mut block[..part])?;
        checksum.add(&block[..part]);
        left -= part as u64;
    }
    let mut trailer = [0; TRAILER];
    from.read_exact(&mut trailer)?;
    Ok(if trailer == checksum.trailer() {
        Ok(())
    } else {
        Err(Broken::Damaged)
    })
}
