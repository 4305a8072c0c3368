//! Rules from a control plane: state of the world over ADS, as Envoy Gateway serves it.
//!
//! [`follow`] keeps one stream open, gives every answer to the [`Feed`] that the rules are loaded
//! from, has them loaded, and tells the control plane what became of them: ACK when all was taken
//! over, NACK with the findings when not. As with files, a domain with an error keeps its old
//! rules and the others move on. While the control plane is away the last rules stay.
//!
//! Each stream begins without a version: control planes count versions from 1 again after a
//! restart, so that a version that looks the same may stand for other rules.

mod connect;
mod resource;

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt as _;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status, Streaming};

pub use self::connect::XdsTls;
use super::{health::Latch, reload::Reloads};
use crate::proto::{
    envoy::{
        config::core::v3::Node,
        service::discovery::v3::{
            DiscoveryRequest, DiscoveryResponse,
            aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
        },
    },
    google::rpc,
};

/// Rules as messages, by their type.
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Findings of one NACK; the log has all of them.
const MOST_FINDINGS: usize = 20;

/// Where the control plane is and how it is spoken to.
#[derive(Clone, Debug)]
pub struct XdsOptions {
    /// `HOST:PORT`, or a URL with `http` or `https`.
    pub server: String,
    /// What control planes tell their clients apart by; Envoy Gateway wants `envoy-ratelimit`.
    pub node_id: String,
    /// More about us.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream.
    pub headers: Vec<(String, String)>,
    /// None: plain text.
    pub tls: Option<XdsTls>,
    /// The wait before the second attempt; it doubles from there. Half of it is chance.
    pub retry: Duration,
    /// The longest wait.
    pub retry_max: Duration,
    /// A larger answer ends the stream, in bytes.
    pub max_message: usize,
}

/// One rule file of the state of the world: a name for findings, and JSON, which is YAML.
pub type RuleFile = (String, String);

/// The latest answer of the control plane. Clones share it.
#[derive(Clone, Default)]
pub struct Feed(Arc<Mutex<Latest>>);

#[derive(Default)]
struct Latest {
    /// None before the first answer; an error when it could not be read.
    files: Option<Result<Vec<RuleFile>, String>>,
    connected: bool,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

impl Feed {
    /// The rule files of the latest answer; none before the first.
    ///
    /// # Errors
    /// Why the answer could not be read.
    pub fn files(&self) -> Option<Result<Vec<RuleFile>, String>> {
        self.0.lock().files.clone()
    }

    /// Appends whether a stream is open over which the control plane has answered, in Prometheus'
    /// text format.
    pub fn render(&self, out: &mut String) {
        let name = "porteiro_xds_connected";
        let connected = u8::from(self.0.lock().connected);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "# HELP {name} 1 while the control plane that rules come from is there.\n\
             # TYPE {name} gauge\n{name} {connected}"
        );
    }

    fn set(&self, files: Result<Vec<RuleFile>, String>) {
        let mut latest = self.0.lock();
        latest.files = Some(files);
        latest.connected = true;
    }

    /// Tells whether it was connected.
    fn disconnected(&self) -> bool {
        std::mem::take(&mut self.0.lock().connected)
    }
}

/// Follows the control plane until told to stop. `waiting` is dropped when the first answer was
/// loaded.
pub async fn follow(
    options: XdsOptions,
    feed: Feed,
    reloads: Reloads,
    waiting: Option<Latch>,
    stop: CancellationToken,
) {
    let mut follower = Follower {
        options,
        feed,
        reloads,
        waiting,
    };
    let mut wait = follower.options.retry;
    while !stop.is_cancelled() {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = follower.stream() => ended,
        };
        // A stream that brought something was a good one: the next attempt comes soon.
        if follower.feed.disconnected() {
            wait = follower.options.retry;
        }
        let pause = wait.mul_f64(rand::rng().random_range(0.5..=1.0));
        tracing::warn!(
            server = follower.options.server,
            "control plane: {}; the rules in place stay, next attempt in {pause:.1?}",
            ended.message()
        );
        wait = wait.saturating_mul(2).min(follower.options.retry_max);
        // Told to stop: the loop ends.
        let _ = timeout(pause, stop.cancelled()).await;
    }
}

struct Follower {
    options: XdsOptions,
    feed: Feed,
    reloads: Reloads,
    waiting: Option<Latch>,
}

impl Follower {
    /// One stream, from connecting to its end; says why it ended.
    async fn stream(&mut self) -> Status {
        match self.talk().await {
            Ok(()) => Status::unavailable("the stream ended"),
            Err(status) => status,
        }
    }

    async fn talk(&mut self) -> Result<(), Status> {
        let channel = connect::channel(&self.options).await?;
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.options.max_message);
        // The first request and the answer to one response: there is never more on its way.
        let (say, said) = mpsc::channel(2);
        let first = DiscoveryRequest {
            node: Some(self.node()),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        let gone = |_| Status::unavailable("the stream ended");
        say.send(first).await.map_err(gone)?;
        let mut request = Request::new(ReceiverStream::new(said));
        connect::add_headers(request.metadata_mut(), &self.options.headers)?;
        let mut answers: Streaming<DiscoveryResponse> = client
            .stream_aggregated_resources(request)
            .await?
            .into_inner();
        let mut version = String::new();
        while let Some(answer) = answers.message().await? {
            let reply = self.take(answer, &mut version).await?;
            say.send(reply).await.map_err(gone)?;
        }
        Ok(())
    }

    /// Loads one answer, and says what became of it. `version` is that of the last one that was
    /// taken over as a whole.
    async fn take(
        &mut self,
        answer: DiscoveryResponse,
        version: &mut String,
    ) -> Result<DiscoveryRequest, Status> {
        let problems = if answer.type_url == TYPE_URL {
            self.feed.set(resource::files(&answer.resources));
            let loads = self.reloads.now().await;
            let loads = loads.ok_or_else(|| Status::cancelled("stopping"))?;
            self.waiting = None;
            loads.problems
        } else {
            vec![format!("{} was not asked for", answer.type_url)]
        };
        let error_detail = refused(&problems);
        if error_detail.is_none() {
            version.clone_from(&answer.version_info);
            tracing::info!(version, "rules of the control plane taken over");
        }
        Ok(DiscoveryRequest {
            version_info: version.clone(),
            node: Some(self.node()),
            type_url: TYPE_URL.to_owned(),
            response_nonce: answer.nonce,
            error_detail,
            ..DiscoveryRequest::default()
        })
    }

    fn node(&self) -> Node {
        Node {
            id: self.options.node_id.clone(),
            cluster: self.options.node_id.clone(),
            metadata: resource::metadata(&self.options.node_metadata),
            user_agent_name: env!("CARGO_PKG_NAME").to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

fn refused(problems: &[String]) -> Option<rpc::Status> {
    if problems.is_empty() {
        return None;
    }
    let mut message = problems[..problems.len().min(MOST_FINDINGS)].join("\n");
    if problems.len() > MOST_FINDINGS {
        message.push_str("\n…");
    }
    Some(rpc::Status {
        code: Code::InvalidArgument.into(),
        message,
        details: Vec::new(),
    })
}
