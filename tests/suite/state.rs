//! What survives a restart: quotas and leases over SIGTERM and SIGKILL, with real processes.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tempfile::TempDir;

use crate::process::Serving;

const DAILY: &str =
    "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 100}\n";

/// A folder with rules, and what is started on it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        Self { folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn start(&self, every: &str) -> Serving {
        let rules = self.folder.path().join("rules.yaml");
        let state = self.file();
        let args = ["--config", text(&rules), "--state", text(&state)];
        let mut serving = Serving::listening(&[&args[..], &["--state-every", every]].concat(), &[]);
        serving.line_with("rules loaded");
        serving
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Whether one more passes.
fn passes(serving: &Serving) -> bool {
    asked(
        serving,
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#,
    )
}

/// Whether a request passes.
fn asked(serving: &Serving, body: &str) -> bool {
    let mut stream = TcpStream::connect(&serving.http).unwrap();
    write!(
        stream,
        "POST /json HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    match answer.split(' ').nth(1) {
        Some("200") => true,
        Some("429" | "503") => false,
        _ => panic!("{answer}"),
    }
}

/// How many of `count` pass.
fn admitted(serving: &Serving, count: u32) -> u32 {
    (0..count).map(|_| u32::from(passes(serving))).sum()
}

/// Another file under the same name is another write.
fn version(path: &Path) -> (u64, i64) {
    let file = fs::metadata(path).unwrap();
    (file.ino(), file.mtime_nsec())
}

/// Until the file was replaced: a write has begun and ended, or had begun before.
fn replaced(path: &Path) {
    let before = version(path);
    while version(path) == before {
        std::thread::yield_now();
    }
}

#[test]
fn a_daily_quota_survives_a_stop_to_the_unit() {
    let place = Place::new(DAILY);
    let mut total = 0;
    for _ in 0..4 {
        // Only the stop writes.
        let serving = place.start("1h");
        total += admitted(&serving, 30);
        serving.signal("-TERM");
        assert_eq!(serving.end().0, Some(0));
    }
    assert_eq!(total, 100);
}

/// Kills the program so many times while it counts a quota of 100 and writes all the time. A life
/// admits some, then waits for a write that began afterwards (the second one from here), then
/// admits a few more and is killed: only those can be forgotten.
fn kill(times: u32) {
    let place = Place::new(DAILY);
    let mut random = StdRng::seed_from_u64(7);
    let (mut total, mut may_be_lost) = (0, 0);
    for life in 0..times {
        let serving = place.start("1ms");
        total += admitted(&serving, 20);
        replaced(&place.file());
        replaced(&place.file());
        let late = admitted(&serving, random.random_range(0..6));
        total += late;
        may_be_lost += late;
        serving.signal("-KILL");
        assert_eq!(serving.end().0, None);
        assert!(
            total <= 100 + may_be_lost,
            "life {life}: {total} of 100 + {may_be_lost}"
        );
    }
    // More was asked for than there is, and all of it was given.
    assert!(times * 20 > 100 && total >= 100, "{total}");
}

#[test]
fn a_kill_loses_what_was_counted_after_the_last_write_and_nothing_else() {
    kill(10);
}

#[test]
#[ignore = "50 starts"]
fn fifty_kills_lose_what_was_counted_after_the_last_writes_and_nothing_else() {
    kill(50);
}

#[test]
fn a_file_that_cannot_be_read_stops_the_start_and_says_how_to_go_on() {
    let place = Place::new(DAILY);
    fs::write(place.file(), "what is this?").unwrap();
    let state = place.file();
    let mut refused = Serving::spawned(&["--state", text(&state)], &[]);
    let error = refused.line_with("state file");
    assert_eq!(refused.end().0, Some(64));
    assert!(
        error.contains(text(&state)) && error.contains("--state-ignore-broken"),
        "{error}"
    );
    assert_eq!(fs::read(place.file()).unwrap(), b"what is this?");
    let args = ["--state", text(&state), "--state-ignore-broken"];
    let serving = Serving::listening(&args, &[]);
    serving.signal("-TERM");
    assert_eq!(serving.end().0, Some(0));
    assert!(fs::read(place.file()).unwrap().starts_with(b"porteiro"));
}

/// A lease of this name is asked for, or given back.
fn lease(serving: &Serving, name: &str, back: bool) -> bool {
    let entry = format!(r#"{{"key":"lease_id","value":"{name}"}}"#);
    asked(
        serving,
        &format!(
            r#"{{"domain":"d","descriptors":[{{"entries":[{entry}],"hits_addend":1,"is_negative_hits":{back}}}]}}"#
        ),
    )
}

#[test]
fn leases_survive_a_stop_and_a_kill_makes_a_snapshot_wait() {
    let rules = |mode: &str| {
        format!(
            "domain: d\ndescriptors:\n- key: lease_id\n  concurrency: {{limit: 2, lease_ttl: 10m, on_restart: {mode}}}\n"
        )
    };
    let place = Place::new(&rules("forget"));
    let serving = place.start("1h");
    assert!(lease(&serving, "a", false) && lease(&serving, "b", false));
    assert!(!lease(&serving, "c", false));
    serving.signal("-TERM");
    assert_eq!(serving.end().0, Some(0));

    let serving = place.start("1ms");
    assert!(!lease(&serving, "c", false), "two are out");
    assert!(lease(&serving, "a", true));
    assert!(lease(&serving, "c", false), "one was given back");
    assert!(!lease(&serving, "d", false));
    replaced(&place.file());
    replaced(&place.file());
    serving.signal("-KILL");
    assert_eq!(serving.end().0, None);

    fs::write(place.folder.path().join("rules.yaml"), rules("snapshot")).unwrap();
    let serving = place.start("1h");
    assert!(lease(&serving, "c", false), "it is known");
    assert!(lease(&serving, "b", true) && lease(&serving, "c", true));
    assert!(!lease(&serving, "e", false), "leases may be out");
    serving.signal("-TERM");
    assert_eq!(serving.end().0, Some(0));
    // A stop in peace does not make known what the kill made unknown.
    let serving = place.start("1h");
    assert!(!lease(&serving, "e", false), "leases may be out");
    serving.signal("-TERM");
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn two_processes_do_not_share_a_file() {
    let place = Place::new(DAILY);
    let serving = place.start("1h");
    let state = place.file();
    let mut other = Serving::spawned(&["--state", text(&state)], &[]);
    other.line_with("another process uses it");
    assert_eq!(other.end().0, Some(64));
    serving.signal("-TERM");
    assert_eq!(serving.end().0, Some(0));
}
