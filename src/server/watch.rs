//! Sees when rule files change.
//!
//! Events of the file system only say *look now*; whether anything changed is decided by what the
//! files contain. So a Kubernetes `ConfigMap` swap (a renamed `..data` link), a rename, a write in
//! place and a release link that moves are one case, and an event too many costs one reading.

use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::sync::Notify;

/// Directories below each other that are looked into; a loop of links ends here.
const MAX_DEPTH: usize = 32;

/// Files and directories that are looked at; more are no rules.
const MAX_ENTRIES: usize = 20_000;

/// How much of a file is looked at. Larger ones hold no rules.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

/// What a path holds, and where to listen for changes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// Same files with the same contents: same number.
    pub(super) fingerprint: u64,
    /// Directories whose entries make a difference.
    pub(super) directories: BTreeSet<PathBuf>,
}

impl Survey {
    /// Reads the file, or every file of the directory except dot entries. Blocking. What cannot be
    /// read counts as different from what can.
    pub(super) fn of(path: &Path) -> Self {
        Self::of_all(&[path])
    }

    /// The same for several paths together.
    pub(super) fn of_all(paths: &[impl AsRef<Path>]) -> Self {
        let mut walk = Walk::default();
        for path in paths {
            walk.ancestors(path.as_ref());
            walk.visit(path.as_ref(), 0);
        }
        Self {
            fingerprint: walk.hasher.finish(),
            directories: walk.directories,
        }
    }
}

#[derive(Default)]
struct Walk {
    hasher: DefaultHasher,
    directories: BTreeSet<PathBuf>,
    entries: usize,
}

impl Walk {
    /// Where the path itself, or a link on the way to it, may be replaced.
    fn ancestors(&mut self, path: &Path) {
        for (index, ancestor) in path.ancestors().enumerate() {
            if index == 0 || ancestor.is_symlink() {
                self.listen_beside(ancestor);
            }
        }
    }

    fn listen_beside(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            let here = Path::new(".");
            let parent = if parent.as_os_str().is_empty() {
                here
            } else {
                parent
            };
            self.directories.insert(parent.to_owned());
        }
    }

    fn visit(&mut self, path: &Path, depth: usize) {
        self.entries += 1;
        if self.entries > MAX_ENTRIES || depth > MAX_DEPTH {
            return;
        }
        path.hash(&mut self.hasher);
        if path.is_symlink()
            && let Ok(target) = fs::canonicalize(path)
        {
            self.listen_beside(&target);
        }
        match fs::metadata(path) {
            Ok(entry) if entry.is_dir() => self.directory(path, depth),
            Ok(entry) if entry.is_file() => {
                if let Err(error) = self.contents(path) {
                    error.kind().hash(&mut self.hasher);
                }
            }
            // A pipe or a device would block, and holds no rules.
            Ok(_) => {}
            Err(error) => error.kind().hash(&mut self.hasher),
        }
    }

    fn contents(&mut self, path: &Path) -> io::Result<()> {
        let mut file = fs::File::open(path)?.take(MAX_BYTES);
        let mut buffer = [0; 16 * 1024];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                n => self.hasher.write(&buffer[..n]),
            }
        }
    }

    fn directory(&mut self, path: &Path, depth: usize) {
        self.directories.insert(path.to_owned());
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => return error.kind().hash(&mut self.hasher),
        };
        let mut children: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|child| !is_dot(child))
            .collect();
        children.sort();
        for child in children {
            self.visit(&child, depth + 1);
        }
    }
}

fn is_dot(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Listens to directories. Without the means to (no inotify left), it stays silent and the slow
/// look has to do.
#[derive(Debug)]
pub(super) struct Watcher {
    inner: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    event: Arc<Notify>,
}

impl Watcher {
    /// Listens to nothing yet.
    pub(super) fn new() -> Self {
        let event = Arc::new(Notify::new());
        let tell = Arc::clone(&event);
        let watcher = notify::recommended_watcher(move |what: notify::Result<notify::Event>| {
            // Our own reading causes events too.
            let read_only = what.is_ok_and(|event| {
                matches!(event.kind, EventKind::Access(kind)
                    if kind != AccessKind::Close(AccessMode::Write))
            });
            if !read_only {
                tell.notify_one();
            }
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "file events are not available; rules are looked at now and then");
        }
        Self {
            inner: watcher.ok(),
            watched: BTreeSet::new(),
            event,
        }
    }

    /// Listens to these directories and no others.
    pub(super) fn listen_to(&mut self, directories: &BTreeSet<PathBuf>) {
        let Some(watcher) = &mut self.inner else {
            return;
        };
        for gone in self.watched.difference(directories) {
            // It may be gone from the disk as well.
            let _ = watcher.unwatch(gone);
        }
        let mut watched = BTreeSet::new();
        for directory in directories {
            let fresh = !self.watched.contains(directory);
            if !fresh
                || watcher
                    .watch(directory, RecursiveMode::NonRecursive)
                    .is_ok()
            {
                watched.insert(directory.clone());
            }
        }
        self.watched = watched;
    }

    /// Something happened since the last time.
    pub(super) async fn event(&self) {
        self.event.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory that is gone afterwards.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("porteiro-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn fingerprint(path: &Path) -> u64 {
        Survey::of(path).fingerprint
    }

    #[test]
    fn contents_and_names_count_and_dot_entries_do_not() {
        let directory = Directory::new("contents");
        let path = &directory.0;
        fs::write(path.join("a.yaml"), "one").unwrap();
        let first = fingerprint(path);
        fs::write(path.join(".hidden"), "x").unwrap();
        fs::write(path.join("a.yaml"), "one").unwrap();
        assert_eq!(fingerprint(path), first);
        fs::write(path.join("a.yaml"), "two").unwrap();
        let second = fingerprint(path);
        assert_ne!(second, first);
        fs::rename(path.join("a.yaml"), path.join("b.yaml")).unwrap();
        assert_ne!(fingerprint(path), second);
        fs::remove_file(path.join("b.yaml")).unwrap();
        assert_ne!(fingerprint(path), first);
        assert_ne!(fingerprint(&path.join("gone")), fingerprint(path));
    }

    #[test]
    fn a_configmap_swap_is_one_change() {
        let directory = Directory::new("configmap");
        let path = &directory.0;
        for (version, text) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(path.join(version)).unwrap();
            fs::write(path.join(version).join("a.yaml"), text).unwrap();
        }
        symlink("..1", path.join("..data")).unwrap();
        symlink("..data/a.yaml", path.join("a.yaml")).unwrap();
        let survey = Survey::of(path);
        assert!(
            survey.directories.contains(path),
            "where `..data` is renamed"
        );
        symlink("..2", path.join("..tmp")).unwrap();
        assert_eq!(fingerprint(path), survey.fingerprint);
        fs::rename(path.join("..tmp"), path.join("..data")).unwrap();
        assert_ne!(fingerprint(path), survey.fingerprint);
    }

    #[test]
    fn a_release_link_on_the_way_is_watched() {
        let directory = Directory::new("release");
        let path = &directory.0;
        fs::create_dir_all(path.join("r1/sub/config")).unwrap();
        symlink("r1", path.join("current")).unwrap();
        let survey = Survey::of(&path.join("current/sub/config"));
        assert!(survey.directories.contains(path), "{survey:?}");
    }

    #[test]
    fn a_loop_of_links_ends() {
        let directory = Directory::new("loop");
        symlink(".", directory.0.join("again")).unwrap();
        assert!(Survey::of(&directory.0).directories.len() <= MAX_DEPTH + 2);
    }
}
