//! The load generator against servers that do what they are told.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    future::pending,
    net::{SocketAddr, TcpListener},
    num::{NonZeroU64, NonZeroUsize},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use porteiro::{
    api::{bounds::Bounds, limiter::Limiter},
    bench::{
        BenchError, Listener, Plan,
        keys::Distribution,
        report::{Limit, Probed, StepReport},
        run,
        schedule::Arrivals,
        template::Template,
    },
    model::time::{Span, Timestamp},
    proto::{
        envoy::service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit},
            rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
        },
        porteiro::v1::limiter_service_server::LimiterServiceServer,
    },
    server::{Options, Transport, noop::Noop},
};
use serde_json::Value;
use tokio::{runtime, sync::Notify};
use tonic::{
    Request, Response, Status, async_trait, service::Routes, transport::server::TcpIncoming,
};

use crate::{
    serving::{TestServer, options},
    support,
};

/// What a server does with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// OK to even keys, `OVER_LIMIT` to odd ones.
    Decides,
    /// `UNAVAILABLE`, but not to the first call.
    Fails,
    /// Never answers, but for the first call.
    Sleeps,
    /// Breaks all connections at the hundredth call.
    Breaks,
}

struct Scripted {
    habit: Habit,
    calls: AtomicU64,
    broken: Notify,
}

struct Server(Arc<Scripted>);

#[async_trait]
impl RateLimitService for Server {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let number = self.0.calls.fetch_add(1, Ordering::SeqCst);
        match self.0.habit {
            Habit::Fails if number > 0 => return Err(Status::unavailable("closed")),
            Habit::Sleeps if number > 0 => pending().await,
            Habit::Breaks if number == 100 => {
                self.0.broken.notify_one();
                pending::<()>().await;
            }
            _ => {}
        }
        let request = request.into_inner();
        let key = &request.descriptors[0].entries[0].value;
        let odd = key.parse::<u64>().unwrap() % 2 == 1;
        let code = if odd { Code::OverLimit } else { Code::Ok };
        let status = DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 7,
                ..RateLimit::default()
            }),
            ..DescriptorStatus::default()
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: code.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        }))
    }
}

/// Serves the scripted service.
fn server(habit: Habit) -> SocketAddr {
    let scripted = Arc::new(Scripted {
        habit,
        calls: AtomicU64::new(0),
        broken: Notify::new(),
    });
    let service = RateLimitServiceServer::new(Server(Arc::clone(&scripted)));
    serve(Routes::new(service), scripted)
}

/// Serves until the test's process ends.
fn serve(routes: Routes, scripted: Arc<Scripted>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        loop {
            // Its end takes the connections with it, but not the listener.
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let listener = listener.try_clone().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let serving = tonic::transport::Server::builder()
                    .add_routes(routes.clone())
                    .serve_with_incoming(TcpIncoming::from(listener));
                tokio::select! {
                    served = serving => served.unwrap(),
                    () = scripted.broken.notified() => {}
                }
            });
        }
    });
    address
}

/// Four hundred calls in a fifth of a second, all lanes together.
fn plan(target: SocketAddr) -> Plan {
    let descriptors = "key={key}".parse().unwrap();
    Plan {
        target: target.to_string().parse().unwrap(),
        template: Template::should_rate_limit("bench", descriptors, 0),
        keys: NonZeroU64::new(1_000).unwrap(),
        distribution: Distribution::Uniform,
        rates: vec![NonZeroU64::new(2_000).unwrap()],
        arrivals: Arrivals::Uniform,
        warm_up: Span::ZERO,
        duration: Span::from_millis(200),
        drain: Span::from_secs(60),
        hold: Span::ZERO,
        connections: NonZeroUsize::new(3).unwrap(),
        lanes: NonZeroUsize::new(2).unwrap(),
        max_in_flight: NonZeroUsize::new(1_000).unwrap(),
        deadline: Some(Span::from_secs(60)),
        seed: 1,
    }
}

const CALLS: u64 = 400;

#[derive(Default)]
struct Heard {
    probed: Option<Probed>,
    measured: usize,
}

impl Listener for Heard {
    fn probed(&mut self, probed: &Probed) {
        self.probed = Some(probed.clone());
    }

    fn measured(&mut self, _step: &StepReport) {
        self.measured += 1;
    }
}

fn measure(plan: &Plan) -> Vec<StepReport> {
    run(plan, &mut Heard::default()).unwrap()
}

#[test]
fn every_scheduled_call_is_sent_and_counted_by_its_answer() {
    let mut plan = plan(server(Habit::Decides));
    plan.rates.push(NonZeroU64::new(1_000).unwrap());
    let mut heard = Heard::default();
    let steps = run(&plan, &mut heard).unwrap();
    let probed = heard.probed.unwrap();
    assert_eq!((probed.overall.as_str(), probed.limited), ("OK", true));
    assert_eq!(probed.statuses, ["OK, 7 per unknown"]);
    assert_eq!(heard.measured, 2);
    for (step, calls) in steps.iter().zip([CALLS, CALLS / 2]) {
        assert_eq!(step.scheduled, calls);
        assert_eq!(step.passed + step.refused, calls);
        // Even and odd keys, by a fixed seed.
        assert!(
            step.passed > calls / 4 && step.refused > calls / 4,
            "{step:?}"
        );
        assert_eq!((step.latency.count, step.lag.count), (calls, calls));
        assert_eq!((step.failed(), step.unanswered, step.unsent), (0, 0, 0));
        assert_eq!(step.reopened, 0);
    }
}

#[test]
fn a_warm_up_is_sent_but_not_counted() {
    let mut plan = plan(server(Habit::Decides));
    plan.warm_up = Span::from_millis(100);
    let steps = measure(&plan);
    assert_eq!((steps[0].scheduled, steps[0].latency.count), (CALLS, CALLS));
}

#[test]
fn refusals_of_the_transport_are_failures_and_no_latencies() {
    let steps = measure(&plan(server(Habit::Fails)));
    let failures: Vec<_> = steps[0].failures.iter().collect();
    assert_eq!(failures, [(&"grpc Unavailable".to_owned(), &CALLS)]);
    assert_eq!(steps[0].latency.count, 0);
}

#[test]
fn a_server_that_never_answers_is_waited_for_in_every_latency() {
    let mut plan = plan(server(Habit::Sleeps));
    plan.drain = Span::from_millis(100);
    plan.max_in_flight = NonZeroUsize::new(10).unwrap();
    plan.rates.push(plan.rates[0]);
    for step in measure(&plan) {
        assert_eq!(step.unanswered + step.unsent, CALLS);
        assert!(step.unanswered <= 10, "{step:?}");
        assert_eq!(step.latency.count, CALLS);
        assert_eq!(step.failed(), 0);
        // The last one was due just before the end, and waited for the whole drain.
        assert!(step.latency.quantiles[0] >= 100_000.0, "{step:?}");
        assert_ne!(step.limit, Limit::None);
    }
}

#[test]
fn a_broken_connection_fails_its_calls_and_is_opened_again() {
    let mut plan = plan(server(Habit::Breaks));
    // One call at a time: only the one that breaks the connection has no answer.
    plan.lanes = NonZeroUsize::MIN;
    plan.max_in_flight = NonZeroUsize::MIN;
    let steps = measure(&plan);
    let step = &steps[0];
    assert!(step.reopened >= 1, "{step:?}");
    assert!(step.failures["connection"] >= 1, "{step:?}");
    assert!(step.passed + step.refused >= 99, "{step:?}");
    assert_eq!(step.passed + step.refused + step.failed(), CALLS);
}

/// A server of ours asks every connection to leave after a moment. What was sent meanwhile is sent
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_because_a_server_asks_connections_to_leave() {
    let transport = Transport {
        max_age: Some(Duration::from_millis(20)),
        ..Transport::default()
    };
    let leaving = Options {
        transport,
        ..options()
    };
    let server = TestServer::start(Noop, leaving).await;
    let mut plan = plan(server.grpc);
    plan.rates = vec![NonZeroU64::new(10_000).unwrap()];
    let steps = tokio::task::spawn_blocking(move || measure(&plan)).await;
    let step = &steps.unwrap()[0];
    assert!(step.reopened > 5, "{step:?}");
    // All of them may have left at once.
    let mut failures = step.failures.clone();
    failures.remove("no connection");
    assert_eq!((failures.len(), step.unanswered), (0, 0), "{step:?}");
}

/// Of three permits that are held for a while, most calls get none, and each that was taken comes
/// back.
#[test]
fn every_lease_is_released() {
    let rules = "\
domain: bench
descriptors:
- key: key
  concurrency: {limit: 3}
";
    let files = BTreeMap::from([("rules.yaml".to_owned(), rules.to_owned())]);
    let service = support::service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000_000));
    let limiter = Limiter::new(Arc::clone(&service.engine), Bounds::default());
    let scripted = Scripted {
        habit: Habit::Decides,
        calls: AtomicU64::new(0),
        broken: Notify::new(),
    };
    let routes = Routes::new(LimiterServiceServer::new(limiter));
    let mut plan = plan(serve(routes, Arc::new(scripted)));
    plan.template = Template::acquire("bench", "key=one".parse().unwrap());
    plan.hold = Span::from_millis(20);
    let mut heard = Heard::default();
    let steps = run(&plan, &mut heard).unwrap();
    let probed = heard.probed.unwrap();
    assert_eq!((probed.overall.as_str(), probed.limited), ("GRANTED", true));
    let step = &steps[0];
    assert_eq!(step.passed + step.refused, CALLS, "{step:?}");
    assert!(step.passed >= 3 && step.refused > 0, "{step:?}");
    assert_eq!((step.released, step.failed()), (step.passed, 0));
    assert_eq!(step.release.count, step.passed);
}

#[test]
fn without_a_server_of_the_protocol_nothing_is_sent() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = run(&plan(closed), &mut Heard::default()).unwrap_err();
    assert!(matches!(error, BenchError::Io(_)), "{error}");

    let mut plan = plan(server(Habit::Decides));
    // A key that the server cannot read makes it fall over.
    plan.template = Template::should_rate_limit("bench", "key=x".parse().unwrap(), 0);
    let error = run(&plan, &mut Heard::default()).unwrap_err();
    assert!(matches!(error, BenchError::Probe(_)), "{error}");
}

#[test]
fn the_program_draws_the_latencies_of_every_rate() {
    let folder = tempfile::tempdir().unwrap();
    let (chart, report) = (folder.path().join("l.svg"), folder.path().join("l.json"));
    let output = Command::new(env!("CARGO_BIN_EXE_porteiro"))
        .arg("bench")
        .arg(format!("--target=http://{}", server(Habit::Decides)))
        .args(["--rate=100,200", "--duration=500ms", "--warm-up=0s"])
        .args(["--descriptor", "key={key}"])
        .args([OsStr::new("--svg"), chart.as_os_str()])
        .args([OsStr::new("--json"), report.as_os_str()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["steps"][1]["rate"], 200);
    let svg = fs::read_to_string(chart).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<_> = document
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .map(|node| node.text().unwrap_or_default().trim())
        .collect();
    for panel in ["100 calls per second", "200 calls per second"] {
        assert!(texts.contains(&panel), "{texts:?}");
    }
    let lines = document
        .descendants()
        .filter(|node| node.has_tag_name("polyline"));
    assert!(lines.count() >= 6, "three lines a rate");
}
