//! Servers of our own.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// A `redis-server` on a free port. Ended when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    dir: PathBuf,
    options: Vec<String>,
}

impl Server {
    /// Starts a server that keeps nothing on disk.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts one with more options, as on its command line.
    pub(crate) fn with(options: &[&str]) -> Self {
        Self::on(free_port(), options)
    }

    /// Starts one on this port.
    pub(crate) fn on(port: u16, options: &[&str]) -> Self {
        let name = format!("porteiro-redis-{}-{port}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let child = spawn(port, &dir, &options);
        let server = Self {
            child,
            port,
            dir,
            options,
        };
        server.wait_until_up();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port, empty.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.dir, &self.options);
        self.wait_until_up();
    }

    fn wait_until_up(&self) {
        for _ in 0..600 {
            // Whatever goes wrong meanwhile, a connection that is reset too: not up yet.
            let reply = Line::open(self.port).and_then(|mut line| line.ask("PING"));
            if reply.is_ok_and(|reply| reply.starts_with("+PONG") || reply.starts_with("-NOAUTH")) {
                return;
            }
            pause(10);
        }
        panic!("redis-server did not start");
    }

    /// A connection for commands of the test, to a server that wants a password.
    pub(crate) fn line_as(&self, password: &str) -> Line {
        let mut line = self.line();
        assert_eq!(line.raw(&format!("AUTH {password}")), "+OK");
        line
    }

    /// A connection for commands of the test.
    pub(crate) fn line(&self) -> Line {
        Line::open(self.port).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn spawn(port: u16, dir: &PathBuf, options: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(dir)
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| {
        panic!("redis-server is needed (Debian: apt-get install redis-server): {error}")
    })
}

/// A port that nobody listens on, nor on the one ten thousand above, which a cluster's node takes as
/// well. Both lie below those that the system hands out by itself; no two calls give the same.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id() * 97;
    loop {
        let number = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 9_000;
        let port = 10_500 + u16::try_from(number).unwrap();
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}

/// A real peer is waited for.
#[expect(clippy::disallowed_methods, reason = "a real server is waited for")]
pub(crate) fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// One connection, one command a line.
pub(crate) struct Line {
    reader: BufReader<TcpStream>,
}

impl Line {
    pub(crate) fn open(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Sends an inline command; returns its reply as text, lines of an array one after the other.
    pub(crate) fn raw(&mut self, command: &str) -> String {
        self.ask(command).unwrap()
    }

    fn ask(&mut self, command: &str) -> std::io::Result<String> {
        let bytes = format!("{command}\r\n");
        self.reader.get_mut().write_all(bytes.as_bytes())?;
        self.reply()
    }

    fn reply(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let line = line.trim_end().to_owned();
        let (kind, rest) = line.split_at(1.min(line.len()));
        match kind {
            "$" => {
                let Ok(length) = rest.parse::<usize>() else {
                    return Ok(String::from("(nil)"));
                };
                let mut bytes = vec![0; length + 2];
                self.reader.read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            "*" => {
                let count: usize = rest.parse().unwrap_or(0);
                let lines = (0..count).map(|_| self.reply());
                Ok(lines.collect::<std::io::Result<Vec<_>>>()?.join("\n"))
            }
            _ => Ok(line),
        }
    }

    /// The next line as it comes, for `MONITOR`.
    pub(crate) fn next(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line
    }
}
