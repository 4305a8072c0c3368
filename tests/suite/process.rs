//! The program as a process: exit codes, signals, what it prints.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Output, Stdio},
};

/// Free ports of loopback.
const PORTS: [&str; 6] = [
    "--grpc",
    "127.0.0.1:0",
    "--http",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
];

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_porteiro"));
    // Nothing of the machine's own settings.
    command.env_clear();
    command
}

/// Runs to the end.
fn output(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A process that serves.
pub(crate) struct Serving {
    child: Child,
    log: BufReader<ChildStderr>,
    pub(crate) grpc: String,
    pub(crate) http: String,
    pub(crate) admin: String,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut serving = Self::listening(args, &[]);
        serving.line_with("rules loaded");
        serving
    }

    /// A process that listens; its rules may still be on their way.
    pub(crate) fn listening(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut serving = Self::spawned(args, env);
        let line = serving.line_with(" listening ");
        let address = |name: &str| {
            let rest = line.split(name).nth(1).unwrap();
            rest.split(' ').next().unwrap().to_owned()
        };
        serving.grpc = address("grpc=");
        serving.http = address("http=");
        serving.admin = address("admin=");
        serving
    }

    /// A process that may not come to listen.
    pub(crate) fn spawned(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = program()
            .args(PORTS)
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self {
            child,
            log,
            grpc: String::new(),
            http: String::new(),
            admin: String::new(),
        }
    }

    /// Reads the log until a line has the text.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.log.read_line(&mut line).unwrap(),
                0,
                "ended before {text:?}"
            );
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(kill.success());
    }

    /// Reads the log on, so that a process that says much is not held up. What is returned stops it
    /// and tells its exit code and the rest of its log.
    pub(crate) fn read_on(self) -> impl FnOnce() -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        let reader = std::thread::spawn(move || self.end());
        move || {
            let kill = Command::new("kill").args(["-TERM", &id]).status().unwrap();
            assert!(kill.success());
            reader.join().unwrap()
        }
    }

    /// The exit code and the rest of the log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

/// A test that fails leaves no process behind.
impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that is gone afterwards.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let name = format!("porteiro-process-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_signal_ends_it_in_peace_with_0() {
    for signal in ["-TERM", "-INT"] {
        let serving = Serving::start(&[]);
        serving.signal(signal);
        let (code, log) = serving.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("every connection was finished"), "{log}");
    }
}

#[test]
fn connections_that_do_not_end_are_cut_with_75() {
    let serving = Serving::start(&["--drain-deadline", "1ms"]);
    let mut guest = TcpStream::connect(&serving.grpc).unwrap();
    // Preface and empty SETTINGS; whoever reads the answer knows that it was taken.
    guest
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    guest.read_exact(&mut [0; 9]).unwrap();
    // It never answers the PING between the two GOAWAYs.
    serving.signal("-TERM");
    let (code, log) = serving.end();
    assert_eq!(code, Some(75), "{log}");
    assert!(log.contains("left=1"), "{log}");
}

#[test]
#[cfg(target_os = "linux")]
fn its_memory_comes_in_ordinary_pages() {
    let serving = Serving::start(&[]);
    let status = fs::read_to_string(format!("/proc/{}/status", serving.child.id())).unwrap();
    // Linux 5.0 and later.
    let line = status.lines().find(|line| line.starts_with("THP_enabled"));
    assert_eq!(line, Some("THP_enabled:\t0"));
}

#[test]
fn a_hangup_reads_the_rules_again() {
    let rules = |requests: u32| {
        format!(
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {{unit: day, requests_per_unit: {requests}}}\n"
        )
    };
    let file = File::new("hangup", &rules(1));
    // Neither events nor looking find it before the signal does.
    let mut serving = Serving::start(&["--config", file.path(), "--reload-quiet", "1h"]);
    fs::write(&file.0, "domain: d\nwrong: 1\n").unwrap();
    serving.signal("-HUP");
    let line = serving.line_with("rules refused");
    assert!(line.contains("hangup.yaml:2"), "{line}");
    serving.signal("-TERM");
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn an_address_in_use_is_named_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = output(&[&PORTS[..4], &["--admin", &address]].concat());
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains(&address) && error.contains("admin"),
        "{error}"
    );
}

#[test]
fn wrong_settings_and_wrong_rules_end_with_64() {
    let wrong = output(&["--grpc", "x", "--drain-delay", "5"]);
    assert_eq!(wrong.status.code(), Some(64));
    assert_eq!(text(&wrong.stderr).lines().count(), 2);

    let unknown = output(&["serve", "--no-such-flag"]);
    assert_eq!(unknown.status.code(), Some(64));

    let file = File::new("wrong", "domain: d\nwrong: 1\nalso: 2\n");
    let rules = output(&[&PORTS[..], &["--config", file.path()]].concat());
    assert_eq!(rules.status.code(), Some(64));
    let error = text(&rules.stderr);
    assert!(
        error.contains("wrong.yaml:2") && error.contains("wrong.yaml:3"),
        "{error}"
    );
}

#[test]
fn without_arguments_the_first_line_says_what_is_served_and_how_to_ask() {
    let serving = Serving::start(&[]);
    serving.signal("-TERM");
    let mut serving = serving;
    let mut printed = String::new();
    let stdout = serving.child.stdout.as_mut().unwrap();
    stdout.read_to_string(&mut printed).unwrap();
    let first = printed.lines().next().unwrap();
    assert!(first.contains("quickstart"), "{first}");
    assert!(printed.contains("curl -i http://127.0.0.1:"), "{printed}");
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn help_and_version_are_0() {
    for flag in ["--help", "--version"] {
        assert_eq!(output(&[flag]).status.code(), Some(0));
    }
    let help = text(&output(&["serve", "--help"]).stdout);
    for flag in [
        "--config",
        "--grpc",
        "--http",
        "--admin",
        "--workers",
        "--store",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
    assert!(!help.contains("--noop"), "hidden");
}
