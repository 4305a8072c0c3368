//! Loads rules when told to and when their files change.

use std::{
    fmt::{self, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{self, JoinError},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    health::Health,
    watch::{Survey, Watcher},
};
use crate::model::time::Clock;

/// Loads the rules and puts them in place. Blocking; called on a thread of its own.
///
/// What a broken file means for the rules that are in place is decided there. An error means that
/// nothing was taken over; it may have several lines.
pub type Load = Arc<dyn Fn() -> Result<Loaded, String> + Send + Sync>;

/// What a load brought.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loaded {
    /// Domains in place afterwards.
    pub domains: usize,
    /// Rules with a limit in place afterwards.
    pub rules: usize,
    /// What was refused, one line each; the domains concerned kept their old rules.
    pub findings: Vec<String>,
    /// Identifies the contents of the files.
    pub revision: String,
}

/// How loading went, for `/rules`, health text and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loads {
    /// Loads that took everything over.
    pub succeeded: u64,
    /// Loads that refused something.
    pub failed: u64,
    /// Unix seconds of the last load.
    pub last_at: u64,
    /// Domains in place.
    pub domains: usize,
    /// Rules with a limit in place.
    pub rules: usize,
    /// Identifies the contents of the files of the last load that took anything over.
    pub revision: String,
    /// What was wrong with the last load, line by line; empty when nothing was.
    pub problems: Vec<String>,
}

impl Loads {
    fn record(&mut self, result: Result<Loaded, String>, at: u64) {
        self.last_at = at;
        self.problems = match result {
            Ok(loaded) => {
                self.domains = loaded.domains;
                self.rules = loaded.rules;
                self.revision = loaded.revision;
                loaded.findings
            }
            Err(text) => text.lines().map(str::to_owned).collect(),
        };
        if self.problems.is_empty() {
            self.succeeded += 1;
        } else {
            self.failed += 1;
        }
    }

    /// Appends how the last load went in Prometheus' text format. How many there were is counted
    /// by the engine, under the reference's names.
    pub(super) fn render(&self, out: &mut String) {
        let gauges = [
            (
                "porteiro_rules_refused",
                "Findings that refused rules at the last load; the old ones are in place.",
                u64::try_from(self.problems.len()).unwrap_or(u64::MAX),
            ),
            (
                "porteiro_rules_last_load_timestamp_seconds",
                "Unix time of the last load, good or bad.",
                self.last_at,
            ),
        ];
        for (name, help, value) in gauges {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}"
            );
        }
        // Sixteen hex digits: nothing to escape.
        let _ = writeln!(
            out,
            "# HELP porteiro_config_info Revision of the rules in place; always 1.\n\
             # TYPE porteiro_config_info gauge\nporteiro_config_info{{hash=\"{}\"}} 1",
            self.revision
        );
    }

    /// Says how the last load went.
    pub(super) fn log(&self) {
        if self.problems.is_empty() {
            tracing::info!(domains = self.domains, rules = self.rules, "rules loaded");
        }
        for problem in &self.problems {
            tracing::error!("rules refused: {problem}");
        }
    }
}

/// When to look for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// File or directory; none: nothing to watch.
    pub path: Option<PathBuf>,
    /// How long files must be quiet before they are read: a writer is not done at its first
    /// write. Default 200 ms; ten times that when they never are.
    pub quiet: Duration,
    /// Looks without being told, for file systems that tell nothing. Default 10 s.
    pub poll: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            path: None,
            quiet: Duration::from_millis(200),
            poll: Duration::from_secs(10),
        }
    }
}

/// Asks for loads and sees how they went. Clones reach the same loader.
#[derive(Clone, Debug)]
pub struct Reloads {
    ask: mpsc::Sender<oneshot::Sender<Loads>>,
    seen: watch::Receiver<Loads>,
}

impl Reloads {
    /// Loads now, changed or not, and tells how it went. None when the process is stopping.
    pub async fn now(&self) -> Option<Loads> {
        let (tell, told) = oneshot::channel();
        self.ask.send(tell).await.ok()?;
        told.await.ok()
    }

    /// How it went so far.
    pub fn so_far(&self) -> Loads {
        self.seen.borrow().clone()
    }

    /// To wait for the next load.
    pub fn subscribe(&self) -> watch::Receiver<Loads> {
        self.seen.clone()
    }
}

/// The part that loads; runs inside the server.
pub struct Loader {
    load: Load,
    watch: Watch,
    clock: Clock,
    asked: mpsc::Receiver<oneshot::Sender<Loads>>,
    seen: watch::Sender<Loads>,
    /// Of the files as they were before the last load.
    fingerprint: u64,
    watcher: Watcher,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

/// A loader and the handle to it.
pub fn loader(load: Load, watch: Watch, clock: Clock) -> (Reloads, Loader) {
    let (ask, asked) = mpsc::channel(8);
    let (tell, seen) = watch::channel(Loads::default());
    let loader = Loader {
        load,
        watch,
        clock,
        asked,
        seen: tell,
        fingerprint: 0,
        watcher: Watcher::new(),
    };
    (Reloads { ask, seen }, loader)
}

impl Loader {
    /// The first load, before the server is ready.
    pub(super) async fn first(&mut self, health: &Health) -> Loads {
        self.look().await;
        self.load(health).await
    }

    async fn reload(&mut self, health: &Health) -> Loads {
        let loads = self.load(health).await;
        loads.log();
        loads
    }

    /// Loads again and again until told to stop.
    pub(super) async fn run(mut self, health: Health, stop: CancellationToken) {
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return,
                Some(tell) = self.asked.recv() => Some(tell),
                () = self.watcher.event() => self.quiet().await,
                () = sleep(self.watch.poll) => None,
            };
            let changed = self.look().await;
            if changed || asked.is_some() {
                let loads = self.reload(&health).await;
                if let Some(tell) = asked {
                    // Whoever asked may have gone.
                    let _ = tell.send(loads);
                }
            }
        }
    }

    /// Waits until no more events come, or somebody asks: they want it now.
    async fn quiet(&mut self) -> Option<oneshot::Sender<Loads>> {
        let (quiet, watcher) = (self.watch.quiet, &self.watcher);
        let silence = async { while timeout(quiet, watcher.event()).await.is_ok() {} };
        tokio::select! {
            Some(asked) = self.asked.recv() => Some(asked),
            // Files that are always written to are read all the same.
            _ = timeout(quiet.saturating_mul(10), silence) => None,
        }
    }

    /// True when the files are not what they were at the last look.
    async fn look(&mut self) -> bool {
        let Some(path) = self.watch.path.clone() else {
            return false;
        };
        let Ok(survey) = task::spawn_blocking(move || Survey::of(&path)).await else {
            return false;
        };
        self.watcher.listen_to(&survey.directories);
        let before = std::mem::replace(&mut self.fingerprint, survey.fingerprint);
        before != survey.fingerprint
    }

    async fn load(&mut self, health: &Health) -> Loads {
        let load = Arc::clone(&self.load);
        let result = task::spawn_blocking(move || load())
            .await
            .unwrap_or_else(|error: JoinError| Err(format!("bug: loading ended early: {error}")));
        let at = self.clock.now().wall.as_secs();
        self.seen.send_modify(|loads| loads.record(result, at));
        let loads = self.seen.borrow().clone();
        health.rules(loads.domains > 0);
        loads
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use parking_lot::Mutex;

    use super::*;

    struct Rules {
        path: PathBuf,
        reloads: Reloads,
        _stop: tokio_util::sync::DropGuard,
        health: Health,
    }

    impl Drop for Rules {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// A file that is loaded as its text; `bad` is refused.
    async fn rules(name: &str, poll: Duration) -> Rules {
        let file = format!("porteiro-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(file);
        fs::write(&path, "good").unwrap();
        let watched = path.clone();
        let in_place = Mutex::new(0);
        let load: Load = Arc::new(move || {
            let text = fs::read_to_string(&watched).map_err(|error| error.to_string())?;
            if text == "bad" {
                return Err("line 1\nline 2".into());
            }
            *in_place.lock() = text.len();
            Ok(Loaded {
                domains: text.len(),
                ..Loaded::default()
            })
        });
        let watch = Watch {
            path: Some(path.clone()),
            quiet: Duration::from_millis(1),
            poll,
        };
        let (health, _) = Health::new(true);
        let (reloads, mut loader) = loader(load, watch, Clock::machine());
        let stop = CancellationToken::new();
        assert_eq!(loader.first(&health).await.succeeded, 1);
        assert!(health.ready());
        tokio::spawn(loader.run(health.clone(), stop.clone()));
        Rules {
            path,
            reloads,
            _stop: stop.drop_guard(),
            health,
        }
    }

    const FOR_EVER: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn a_write_is_seen_and_a_bad_one_keeps_what_was() {
        let rules = rules("write", FOR_EVER).await;
        let mut seen = rules.reloads.subscribe();
        fs::write(&rules.path, "better").unwrap();
        seen.wait_for(|loads| loads.domains == 6).await.unwrap();
        fs::write(&rules.path, "bad").unwrap();
        let loads = seen
            .wait_for(|loads| loads.failed > 0)
            .await
            .unwrap()
            .clone();
        assert_eq!(loads.problems, ["line 1", "line 2"]);
        assert_eq!(loads.domains, 6);
        assert!(rules.health.ready(), "the old rules still hold");
        fs::write(&rules.path, "good").unwrap();
        seen.wait_for(|loads| loads.problems.is_empty())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_rename_over_the_file_is_seen() {
        let rules = rules("rename", FOR_EVER).await;
        let mut seen = rules.reloads.subscribe();
        let beside = rules.path.with_extension("new");
        fs::write(&beside, "renamed").unwrap();
        fs::rename(&beside, &rules.path).unwrap();
        seen.wait_for(|loads| loads.domains == 7).await.unwrap();
    }

    #[tokio::test]
    async fn asking_loads_even_when_nothing_changed() {
        let rules = rules("asked", FOR_EVER).await;
        assert_eq!(rules.reloads.now().await.unwrap().succeeded, 2);
        assert_eq!(rules.reloads.so_far().succeeded, 2);
    }

    #[tokio::test]
    async fn a_look_without_change_does_not_load() {
        let rules = rules("poll", Duration::from_millis(1)).await;
        // The same contents again: an event and many looks, no load.
        fs::write(&rules.path, "good").unwrap();
        assert_eq!(rules.reloads.now().await.unwrap().succeeded, 2);
    }
}
