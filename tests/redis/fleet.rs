//! Limits on work in flight over real processes on one Redis, some of which die.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::SeqCst},
};

use porteiro::proto::porteiro::v1::{
    AcquireRequest, AcquireResponse, Holder, LeaseEnd, LeaseRenewal, ReleaseRequest, RenewRequest,
    SessionRequest, SessionResponse, acquire_response::Decision,
    limiter_service_client::LimiterServiceClient, release_result::Status as Released,
    renew_result::Status as Renewed, session_request::Message as Say, session_request::Open,
    session_response::Message as Said,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use crate::{leases::ask, processes::Process, server::Server};

/// Permits of the limit under load.
const LOAD: i64 = 7;
const RULES: &str = "
domain: edge
on_store_failure: deny
descriptors:
- key: pair
  concurrency: {limit: 1, lease_ttl: 60s}
- key: unary
  concurrency: {limit: 3, lease_ttl: 2s, max_wait: 30s}
- key: session
  concurrency: {limit: 3, lease_ttl: 60s, max_wait: 30s}
- key: load
  concurrency: {limit: 7, lease_ttl: 2s, max_wait: 30s, max_waiters: 1000}
";

type Client = LimiterServiceClient<Channel>;

fn rules() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("edge.yaml"), RULES).unwrap();
    folder
}

fn start(server: &Server, rules: &tempfile::TempDir) -> Process {
    let url = server.url();
    let patient = ["--store", &url, "--store-deadline", "10s"];
    let args = [&patient[..], &["--store-session-life", "1s"]].concat();
    Process::start(rules, &args, &[])
}

async fn client(process: &Process) -> Client {
    LimiterServiceClient::new(process.channel().await)
}

/// Does not wait.
fn at_once(key: &str) -> AcquireRequest {
    AcquireRequest {
        max_wait: Some(prost_types::Duration::default()),
        ..ask(&[(key, "x")])
    }
}

/// Waits for all permits of a limit.
fn all_of(key: &str, permits: u64) -> AcquireRequest {
    let mut request = ask(&[(key, "x")]);
    request.items[0].permits = Some(permits);
    request
}

async fn acquire(client: &mut Client, request: AcquireRequest) -> AcquireResponse {
    client.acquire(request).await.unwrap().into_inner()
}

async fn release(client: &mut Client, lease_id: String) -> Result<Released, Status> {
    let request = ReleaseRequest {
        holder: Some(holder()),
        leases: vec![LeaseEnd {
            lease_id,
            ..LeaseEnd::default()
        }],
    };
    let answer = client.release(request).await?.into_inner();
    Ok(answer.results[0].status())
}

fn holder() -> Holder {
    Holder {
        id: "h".to_owned(),
        instance: String::new(),
    }
}

/// Microseconds by the server's clock.
fn time(server: &Server) -> u64 {
    let time = server.line().raw("TIME");
    let (seconds, micros) = time.split_once('\n').unwrap();
    seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap()
}

struct Stream {
    say: mpsc::Sender<SessionRequest>,
    said: Streaming<SessionResponse>,
}

impl Stream {
    async fn open(client: &mut Client) -> Self {
        let (say, heard) = mpsc::channel(16);
        let open = Open {
            domain: "edge".to_owned(),
            holder: Some(holder()),
            ..Open::default()
        };
        say.send(SessionRequest {
            correlation: 1,
            message: Some(Say::Open(open)),
        })
        .await
        .unwrap();
        let said = client.session(ReceiverStream::new(heard)).await.unwrap();
        let mut stream = Self {
            say,
            said: said.into_inner(),
        };
        let opened = stream.said.message().await.unwrap().unwrap().message;
        assert!(matches!(opened, Some(Said::Opened(_))), "{opened:?}");
        stream
    }

    async fn acquire(&mut self, request: AcquireRequest) -> Decision {
        let request = SessionRequest {
            correlation: 2,
            message: Some(Say::Acquire(request)),
        };
        self.say.send(request).await.unwrap();
        match self.said.message().await.unwrap().unwrap().message {
            Some(Said::Acquired(answer)) => answer.decision(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_one_process_is_renewed_and_released_at_another() {
    let (server, rules) = (Server::start(), rules());
    let (a, b) = (start(&server, &rules), start(&server, &rules));
    let (mut a, mut b) = (client(&a).await, client(&b).await);
    let granted = acquire(&mut a, at_once("pair")).await;
    assert_eq!(granted.decision(), Decision::Granted);
    let refused = acquire(&mut b, at_once("pair")).await;
    assert_eq!(refused.decision(), Decision::Refused);
    let request = RenewRequest {
        holder: Some(holder()),
        leases: vec![LeaseRenewal {
            lease_id: granted.lease_id.clone(),
            ..LeaseRenewal::default()
        }],
    };
    let renewed = b.renew(request).await.unwrap().into_inner();
    assert_eq!(renewed.results[0].status(), Renewed::Renewed);
    let lease = granted.lease_id;
    let released = release(&mut b, lease.clone()).await.unwrap();
    assert_eq!(released, Released::Released);
    let again = release(&mut a, lease).await.unwrap();
    assert_eq!(again, Released::AlreadyReleased);
    let next = acquire(&mut a, at_once("pair")).await;
    assert_eq!(next.decision(), Decision::Granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_process_that_is_killed_come_back_after_their_time() {
    let (server, rules) = (Server::start(), rules());
    let (doomed, b) = (start(&server, &rules), start(&server, &rules));
    let (mut a, mut b) = (client(&doomed).await, client(&b).await);
    let mut stream = Stream::open(&mut a).await;
    for _ in 0..3 {
        let decision = stream.acquire(at_once("session")).await;
        assert_eq!(decision, Decision::Granted);
    }
    // Its process keeps them alive.
    let begun = time(&server);
    while time(&server) < begun + 2_500_000 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let refused = acquire(&mut b, at_once("session")).await;
    assert_eq!(refused.decision(), Decision::Refused);
    assert_eq!(refused.items[0].in_flight, 3);

    let begun = time(&server);
    for _ in 0..3 {
        let granted = acquire(&mut a, at_once("unary")).await;
        assert_eq!(granted.decision(), Decision::Granted);
    }
    drop(doomed);
    assert!(a.acquire(at_once("unary")).await.is_err(), "it is dead");
    for key in ["session", "unary"] {
        let granted = acquire(&mut b, all_of(key, 3)).await;
        assert_eq!(granted.decision(), Decision::Granted, "{key}");
    }
    assert!(time(&server) >= begun + 2_000_000, "not before their time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_processes_under_load_never_exceed_the_limit_though_one_is_killed() {
    let (server, rules) = (Server::start(), rules());
    let mut processes: Vec<Process> = (0..5).map(|_| start(&server, &rules)).collect();
    let (held, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = JoinSet::new();
    for process in &processes {
        let client = client(process).await;
        for _ in 0..20 {
            let (mut client, held, most) = (client.clone(), Arc::clone(&held), Arc::clone(&most));
            tasks.spawn(async move {
                for round in 0..10 {
                    let Ok(answer) = client.acquire(ask(&[("load", "x")])).await else {
                        return round;
                    };
                    let answer = answer.into_inner();
                    assert_eq!(answer.decision(), Decision::Granted);
                    most.fetch_max(held.fetch_add(1, SeqCst) + 1, SeqCst);
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, SeqCst);
                    if release(&mut client, answer.lease_id).await.is_err() {
                        return round;
                    }
                }
                10
            });
        }
    }
    // In the midst of it: who waits there is told so, what it granted comes back by its time.
    drop(processes.pop());
    let rounds = tasks.join_all().await;
    let whole = rounds.iter().filter(|rounds| **rounds == 10).count();
    assert!(whole >= 80, "the others went on: {whole}");
    let most = most.load(SeqCst);
    assert!(most <= LOAD, "{most} in flight");
    let mut last = client(&processes[0]).await;
    let granted = acquire(&mut last, all_of("load", LOAD.unsigned_abs())).await;
    assert_eq!(granted.decision(), Decision::Granted);
}
