//! Real processes on one Redis.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStderr, Command, Stdio},
    sync::Arc,
};

use porteiro::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use crate::{
    exact::{LIMIT, minute},
    server::Server,
    suite::{REQUEST, message},
};

const CALLS: usize = 400;

/// What each algorithm admits of those who come at once. Buckets are per hour, so that a slow
/// machine sees none of it come back; the queue has one slot at once.
const ALGORITHMS: [(&str, &str, u64); 9] = [
    ("clock", "rate: 50/m", LIMIT),
    ("first_hit", "rate: 50/m, anchor: first_hit", LIMIT),
    ("last_hit", "rate: 50/m, anchor: last_hit", LIMIT),
    ("calendar", "rate: 50/month, anchor: calendar", LIMIT),
    ("sliding_log", "rate: 50/m, algorithm: sliding_log", LIMIT),
    (
        "sliding_window",
        "rate: 50/m, algorithm: sliding_window",
        LIMIT,
    ),
    ("token_bucket", "rate: 50/h, algorithm: token_bucket", LIMIT),
    ("leaky_bucket", "rate: 50/h, algorithm: leaky_bucket", LIMIT),
    ("leaky_queue", "rate: 50/h, algorithm: leaky_queue", 1),
];

/// What the store does not decide is refused, so that it shows.
fn rules() -> tempfile::TempDir {
    let mut text = "domain: edge\non_store_failure: deny\ndescriptors:\n".to_owned();
    for (key, limit, _) in ALGORITHMS {
        writeln!(text, "- key: {key}\n  limits: [{{{limit}}}]").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("edge.yaml"), text).unwrap();
    folder
}

/// A process that serves; killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: BufReader<ChildStderr>,
    grpc: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub(crate) fn start(
        rules: &tempfile::TempDir,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let any = "127.0.0.1:0";
        let mut child = Command::new(env!("CARGO_BIN_EXE_porteiro"))
            .env_clear()
            .envs(environment.iter().copied())
            .args(["serve", "--grpc", any, "--http", any, "--admin", any])
            .arg("--config")
            .arg(rules.path())
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut process = Self {
            child,
            log,
            grpc: String::new(),
        };
        let line = process.line_with(" listening ");
        let grpc = line.split("grpc=").nth(1).unwrap();
        process.grpc = grpc.split(' ').next().unwrap().to_owned();
        process
    }

    /// Reads the log until a line has the text.
    fn line_with(&mut self, text: &str) -> String {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let length = self.log.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "ended before {text:?}");
        }
        line
    }

    /// Tells it to stop and waits until it has.
    pub(crate) fn stop(mut self) {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.unwrap().success());
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }

    /// Kills it; the rest of its log.
    pub(crate) fn end(mut self) -> String {
        let _ = self.child.kill();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        rest
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        endpoint.connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }
}

fn request(key: &str, value: &str) -> RateLimitRequest {
    let entries = json!([{"key": key, "value": value}]);
    message(
        REQUEST,
        &json!({"domain": "edge", "descriptors": [{"entries": entries}]}),
    )
}

async fn admitted(clients: &[RateLimitServiceClient<Channel>], key: &str, value: &str) -> u64 {
    let mut calls = JoinSet::new();
    let asked = Arc::new(request(key, value));
    for call in 0..CALLS {
        let mut client = clients[call % clients.len()].clone();
        let asked = RateLimitRequest::clone(&asked);
        calls.spawn(async move {
            let answer = client.should_rate_limit(asked).await.unwrap().into_inner();
            answer.overall_code() == Code::Ok
        });
    }
    let answers = calls.join_all().await;
    answers.iter().map(|passed| u64::from(*passed)).sum()
}

/// Each round of each algorithm admits exactly what it promises. A round whose minute ended is done
/// again.
async fn exactly(processes: usize, rounds: usize) {
    let (server, rules) = (Server::start(), rules());
    let url = server.url();
    let patient = ["--store", &url, "--store-deadline", "10s"];
    let processes: Vec<Process> = (0..processes)
        .map(|_| Process::start(&rules, &patient, &[]))
        .collect();
    let mut clients = Vec::new();
    for process in &processes {
        clients.push(process.client().await);
    }
    for (key, _, want) in ALGORITHMS {
        let (mut round, mut attempt) = (0, 0);
        while round < rounds {
            attempt += 1;
            let before = minute(&server);
            let admitted = admitted(&clients, key, &attempt.to_string()).await;
            if minute(&server) == before {
                assert_eq!(admitted, want, "{key}, round {round}");
                round += 1;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_admit_exactly_the_limit() {
    exactly(2, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_processes_admit_exactly_the_limit() {
    exactly(5, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute"]
async fn processes_admit_exactly_the_limit_ten_times() {
    exactly(2, 10).await;
    exactly(5, 10).await;
}

#[tokio::test]
async fn the_references_variables_reach_a_real_server_and_no_secret_is_shown() {
    let server = Server::with(&["--requirepass", "hunter2"]);
    let rules = rules();
    let place = format!("127.0.0.1:{}", server.port);
    let environment = [
        ("REDIS_TYPE", "SINGLE"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", place.as_str()),
        ("REDIS_AUTH", "hunter2"),
        ("REDIS_PIPELINE_WINDOW", "1ms"),
        ("LOG_LEVEL", "trace"),
    ];
    let patient = ["--store-deadline", "10s"];
    let process = Process::start(&rules, &patient, &environment);
    let mut client = process.client().await;
    let mut ask = async || {
        let answer = client.should_rate_limit(request("clock", "x")).await;
        answer.unwrap().into_inner()
    };
    assert_eq!(ask().await.overall_code(), Code::Ok);
    let keys = server.line_as("hunter2").raw("KEYS *");
    assert!(keys.contains("{porteiro:edge}"), "{keys}");
    let log = process.end();
    assert!(!log.contains("hunter2"), "{log}");
    // And with a wrong one, which the server complains about.
    let wrong = [("REDIS_URL", place.as_str()), ("REDIS_AUTH", "swordfish")];
    let mut process = Process::start(&rules, &["--log-level", "trace"], &wrong);
    let complaint = process.line_with("credentials");
    let log = complaint + &process.end();
    assert!(!log.contains("swordfish"), "{log}");
}
