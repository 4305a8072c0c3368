//! Blocks of processes that stop, die or get their answers late.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use porteiro::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::{
    processes::Process,
    server::Server,
    suite::{REQUEST, message},
};

const LIMIT: u64 = 100;
const BLOCK: u64 = 40;

/// What the store does not decide is refused, so that it shows. Blocks are held longer than a test
/// takes.
const RULES: &str = "
domain: edge
on_store_failure: deny
descriptors:
- key: few
  limits: [{rate: 100/day, anchor: first_hit, slice: {size: 40, max_staleness: 10s}}]
- key: many
  limits: [{rate: 20000/day, anchor: first_hit, slice: {size: 40, max_staleness: 10s}}]
";

fn rules() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("edge.yaml"), RULES).unwrap();
    folder
}

fn start(server: &Server, rules: &tempfile::TempDir, processes: usize) -> Vec<Process> {
    let url = server.url();
    let patient = ["--store", &url, "--store-deadline", "10s"];
    let start = |_| Process::start(rules, &patient, &[]);
    (0..processes).map(start).collect()
}

fn request(key: &str) -> RateLimitRequest {
    let entries = json!([{"key": key, "value": "x"}]);
    let descriptors = json!([{"entries": entries}]);
    message(
        REQUEST,
        &json!({"domain": "edge", "descriptors": descriptors}),
    )
}

type Client = RateLimitServiceClient<Channel>;

/// How many of so many calls, one after the other, pass.
async fn passed(client: &mut Client, calls: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..calls {
        let answer = client.should_rate_limit(request("few")).await.unwrap();
        passed += u64::from(answer.into_inner().overall_code() == Code::Ok);
    }
    passed
}

/// A process that holds all of a block but one unit, and another one.
async fn holder_and_other(server: &Server, rules: &tempfile::TempDir) -> (Process, Process) {
    let mut both = start(server, rules, 2);
    let (other, holder) = (both.pop().unwrap(), both.pop().unwrap());
    // The first call tells how much there is; the second takes a block and has one unit of it.
    assert_eq!(passed(&mut holder.client().await, 2).await, 2);
    (holder, other)
}

/// On two threads: the client's connection has to be closed while the test waits for the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_told_to_stop_gives_its_block_back() {
    let (server, rules) = (Server::start(), rules());
    let (holder, other) = holder_and_other(&server, &rules).await;
    holder.stop();
    assert_eq!(
        passed(&mut other.client().await, 2 * LIMIT).await,
        LIMIT - 2
    );
}

#[tokio::test]
async fn a_process_that_is_killed_loses_its_block_and_no_more() {
    let (server, rules) = (Server::start(), rules());
    let (holder, other) = holder_and_other(&server, &rules).await;
    drop(holder.end());
    let rest = passed(&mut other.client().await, 2 * LIMIT).await;
    assert_eq!(rest, LIMIT - 2 - (BLOCK - 1));
}

/// Calls for ever at one process; counts what passes.
async fn press(mut client: Client, passed: Arc<AtomicU64>, refused: Arc<AtomicU64>) {
    while let Ok(answer) = client.should_rate_limit(request("many")).await {
        if answer.into_inner().overall_code() == Code::Ok {
            passed.fetch_add(1, Ordering::Relaxed);
        } else if refused.fetch_add(1, Ordering::Relaxed) > 2_000 {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_a_killed_process_costs_its_block_and_what_was_on_its_way() {
    const CALLERS: u64 = 8;
    let (server, rules) = (Server::start(), rules());
    let mut processes = start(&server, &rules, 3);
    let (passed, refused) = (Arc::default(), Arc::default());
    let mut pressing = JoinSet::new();
    for process in &processes {
        let client = process.client().await;
        for _ in 0..CALLERS {
            let (client, passed, refused) =
                (client.clone(), Arc::clone(&passed), Arc::clone(&refused));
            pressing.spawn(press(client, passed, refused));
        }
    }
    while passed.load(Ordering::Relaxed) < 2_000 {
        tokio::task::yield_now().await;
    }
    drop(processes.pop().unwrap().end());
    let before = passed.load(Ordering::Relaxed);
    pressing.join_all().await;
    let all = passed.load(Ordering::Relaxed);
    assert!(before < 20_000, "killed too late: {before}");
    // Those that live may hold units of their last block, for want of callers.
    let held = 2 * BLOCK;
    assert!(all <= 20_000, "{all}");
    assert!(all >= 20_000 - BLOCK - CALLERS - held, "{all}");
}
