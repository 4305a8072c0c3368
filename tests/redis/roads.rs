//! The ways to a server: TLS, a socket, users, sentinels.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use porteiro::{
    model::time::Clock,
    store::redis::{RedisOptions, RedisStore, Tls},
};
use tempfile::TempDir;

use crate::{
    limits::{PATIENT, one, per_hour, until_answered, until_health},
    server::{Line, Server, free_port, pause},
};

fn connect(options: RedisOptions) -> RedisStore {
    let options = RedisOptions {
        deadline: PATIENT,
        ..options
    };
    RedisStore::connect(options, Clock::machine())
}

/// Why the store is not up, once the probe knows.
async fn complaint(store: &RedisStore) -> String {
    for _ in 0..1_000 {
        if let Some(error) = store.health().error
            && error.contains(": ")
        {
            return error;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{:?}", store.health());
}

fn openssl(folder: &Path, words: &str) {
    let made = Command::new("openssl")
        .args(words.split(' '))
        .current_dir(folder)
        .output()
        .expect("openssl is needed (Debian: apt-get install openssl)");
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "openssl {words}: {told}");
}

/// An authority, and certificates of `server` and `client` by it; `other` is another authority.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["ca", "other"] {
        let words = format!("req -x509 {key} -keyout {name}.key -out {name}.pem -subj /CN={name}");
        openssl(at, &words);
    }
    fs::write(at.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    for name in ["server", "client"] {
        let words = format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}");
        openssl(at, &words);
        let words = format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
             -extfile names -out {name}.pem"
        );
        openssl(at, &words);
    }
    folder
}

#[tokio::test]
async fn tls_with_certificates_on_both_sides() {
    let made = certificates();
    let at = |name: &str| -> PathBuf { made.path().join(name) };
    let port = free_port();
    let server = Server::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-auth-clients",
        "yes",
        "--tls-cert-file",
        at("server.pem").to_str().unwrap(),
        "--tls-key-file",
        at("server.key").to_str().unwrap(),
        "--tls-ca-cert-file",
        at("ca.pem").to_str().unwrap(),
    ]);
    let to = |authority: &str, identity: bool| {
        let identity = identity.then(|| (at("client.pem"), at("client.key")));
        let mut options = RedisOptions::parse(&format!("rediss://127.0.0.1:{port}")).unwrap();
        options.tls = Some(Tls {
            authority: Some(at(authority)),
            identity,
        });
        connect(options)
    };
    let limit = per_hour(2);
    let store = to("ca.pem", true);
    until_health(&store, true).await;
    let outcomes = store.decide("edge", &one(1, &limit), PATIENT).await;
    assert!(outcomes.unwrap()[0].allowed);
    assert!(server.line().raw("KEYS *").contains("{porteiro:edge}"));
    let stranger = complaint(&to("other.pem", true)).await;
    assert!(stranger.contains("certificate"), "{stranger}");
    let nobody = complaint(&to("ca.pem", false)).await;
    assert!(nobody.contains("CertificateRequired"), "{nobody}");
}

#[tokio::test]
async fn a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let server = Server::with(&["--unixsocket", path.to_str().unwrap()]);
    let url = format!("redis+unix://{}", path.display());
    let store = connect(RedisOptions::parse(&url).unwrap());
    until_answered(&store, "edge", &one(1, &per_hour(2))).await;
    assert!(server.line().raw("KEYS *").contains("{porteiro:edge}"));
}

#[tokio::test]
async fn user_and_password_come_from_files_that_are_read_again() {
    let server = Server::start();
    let mut line = server.line();
    let rights = "~{porteiro:* +@all";
    assert_eq!(
        line.raw(&format!("ACL SETUSER ana on >first {rights}")),
        "+OK"
    );
    assert_eq!(
        line.raw(&format!("ACL SETUSER eve on >second {rights}")),
        "+OK"
    );
    let folder = tempfile::tempdir().unwrap();
    let [user, password] = ["user", "password"].map(|name| folder.path().join(name));
    let write = |name: &str, word: &str| {
        fs::write(&user, name).unwrap();
        fs::write(&password, format!("{word}\n")).unwrap();
    };
    write("ana", "first");
    let mut options = RedisOptions::parse(&server.url()).unwrap();
    options.login.user_file = Some(user.clone());
    options.login.password_file = Some(password.clone());
    let shown = format!("{options:?}");
    let store = connect(options);
    until_answered(&store, "edge", &one(1, &per_hour(9))).await;
    assert!(line.raw("CLIENT LIST").contains("user=ana"));
    write("eve", "second");
    assert_ne!(line.raw("CLIENT KILL USER ana"), ":0");
    until_answered(&store, "edge", &one(1, &per_hour(9))).await;
    let clients = line.raw("CLIENT LIST");
    assert!(
        clients.contains("user=eve") && !clients.contains("user=ana"),
        "{clients}"
    );
    assert!(!shown.contains("first") && !format!("{store:?}").contains("second"));
}

/// A sentinel that watches one primary; killed when dropped.
struct Sentinel {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sentinel {
    fn start(primary: u16) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let file = folder.path().join("sentinel.conf");
        let dir = folder.path().display();
        let lines = format!(
            "port {port}\nbind 127.0.0.1\ndir {dir}\nrequirepass watch\n\
             sentinel monitor main 127.0.0.1 {primary} 1\nsentinel auth-pass main hunter2\n\
             sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
        );
        fs::write(&file, lines).unwrap();
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Self {
            child,
            port,
            _folder: folder,
        };
        for _ in 0..3_000 {
            let known = Line::open(port).is_ok_and(|mut line| {
                line.raw("AUTH watch");
                line.raw("SENTINEL REPLICAS main").contains("127.0.0.1")
            });
            if known {
                return sentinel;
            }
            pause(10);
        }
        panic!("the sentinel does not know the replica");
    }
}

#[tokio::test]
async fn sentinels_name_the_primary_and_its_successor() {
    let password = ["--requirepass", "hunter2", "--masterauth", "hunter2"];
    let quick = ["--repl-diskless-sync-delay", "0"];
    let options = [&password[..], &quick[..]].concat();
    let mut primary = Server::with(&options);
    let at = format!("127.0.0.1 {}", primary.port);
    let replica = Server::with(&[&options[..], &["--replicaof", &at]].concat());
    let replication = || replica.line_as("hunter2").raw("INFO replication");
    while !replication().contains("master_link_status:up") {
        pause(10);
    }
    let sentinel = Sentinel::start(primary.port);
    let url = format!("redis+sentinel://:hunter2@127.0.0.1:{}/main", sentinel.port);
    let mut options = RedisOptions::parse(&url).unwrap();
    options.sentinel_login = porteiro::store::redis::parse_login("watch").unwrap();
    let store = connect(options);
    let (limit, mut used) = (per_hour(100), 0);
    for _ in 0..3 {
        used = until_answered(&store, "edge", &one(1, &limit)).await.1[0].used_before;
    }
    assert_eq!(used, 2);
    let offset = |text: &str| -> u64 {
        let line = text
            .lines()
            .find(|line| line.starts_with("master_repl_offset:"));
        line.unwrap()[19..].trim().parse().unwrap()
    };
    let written = offset(&primary.line_as("hunter2").raw("INFO replication"));
    while offset(&replication()) < written {
        pause(5);
    }
    primary.kill();
    let (back, outcomes) = until_answered(&store, "edge", &one(1, &limit)).await;
    assert_eq!(outcomes[0].used_before, 3, "the count moved to the replica");
    println!("answers again after {back:?}");
    until_health(&store, true).await;
}
