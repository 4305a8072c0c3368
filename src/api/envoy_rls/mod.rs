//! Envoy's rate limit service: `RateLimitRequest` → [`Request`], [`Verdict`] →
//! `RateLimitResponse`. All of Envoy's words end here.
//!
//! Here is the service: its ways from a call to an answer. `read` has the first arrow, `respond` the
//! second, `refusal` what only HTTP is told.

mod read;
mod refusal;
mod respond;

use std::sync::Arc;

use prost::Message as _;
use tonic::{Response, Status};

pub use self::{
    read::{check, named, request},
    refusal::{Refusal, Tell},
};
use crate::{
    api::{
        bounds::Bounds,
        deadline::grpc_timeout,
        headers::HeaderNames,
        limiter::batch,
        privileges::Privileges,
        status,
        wire::{self, Answer, Asked, Encoded},
    },
    engine::{Engine, verdict::Verdict},
    model::{
        lease::Peer,
        request::Request,
        time::{Now, Span},
    },
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
    },
    store::connections::Connection,
    telemetry::latency,
};

/// What answers carry besides statuses; the reference's environment settings.
#[derive(Clone, Debug, Default)]
pub struct AnswerOptions {
    /// Names of the reference's three headers; none: not sent.
    pub headers: Option<HeaderNames>,
    /// Fill `dynamic_metadata`.
    pub dynamic_metadata: bool,
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default)]
struct Asker {
    tell: Tell,
    peer: Option<Peer>,
}

/// Bytes that most answers need for a descriptor.
const ROOM: usize = 40;

/// Metadata in which a proxy names its node, where addresses do not tell proxies apart.
const NODE: &str = "x-node-id";

/// Whose connection a call came through, if some rule wants to know.
fn peer_of<T>(request: &tonic::Request<T>, now: Now) -> Option<Peer> {
    let connection = request.extensions().get::<Arc<Connection>>()?;
    let node = request.metadata().get(NODE);
    connection.peer(node.and_then(|node| node.to_str().ok()), now)
}

/// An answer, with what Envoy's message has no place for.
struct Answered {
    message: RateLimitResponse,
    refusal: Option<Refusal>,
}

/// The service.
#[derive(Clone, Debug)]
pub struct RateLimit {
    engine: Arc<Engine>,
    bounds: Bounds,
    options: AnswerOptions,
    default_names: HeaderNames,
    privileges: Arc<Privileges>,
}

impl RateLimit {
    /// A service that decides with `engine`.
    pub fn new(engine: Arc<Engine>, bounds: Bounds, options: AnswerOptions) -> Self {
        Self {
            engine,
            bounds,
            options,
            default_names: HeaderNames::default(),
            privileges: Arc::default(),
        }
    }

    /// The same, with something restricted to some callers.
    #[must_use]
    pub fn with_privileges(mut self, privileges: Arc<Privileges>) -> Self {
        self.privileges = privileges;
        self
    }

    /// What decides.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What a request may be.
    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// What is restricted.
    pub(super) fn privileges(&self) -> &Privileges {
        &self.privileges
    }

    /// Answers one request that was read at `now`; `timeout` is how long its caller waits.
    pub async fn answer(
        &self,
        message: &RateLimitRequest,
        now: Now,
        timeout: Option<Span>,
    ) -> Result<RateLimitResponse, Status> {
        let answered = self.answered(message, now, timeout, Asker::default()).await;
        answered.map(|answered| answered.message)
    }

    /// The first half of [`RateLimit::answer`]: counts the call and answers it if nothing has to be
    /// awaited. None: [`RateLimit::answer_later`] answers.
    pub(super) fn answer_at_once(
        &self,
        message: &RateLimitRequest,
        now: Now,
    ) -> Option<Result<RateLimitResponse, Status>> {
        let answered = self.at_once(message, now, Tell::Envoy)?;
        Some(answered.map(|answered| answered.message))
    }

    /// The second half of [`RateLimit::answer`].
    pub(super) async fn answer_later(
        &self,
        message: &RateLimitRequest,
        now: Now,
        timeout: Option<Span>,
    ) -> Result<RateLimitResponse, Status> {
        let answered = self.later(message, now, timeout, Asker::default()).await;
        answered.map(|answered| answered.message)
    }

    async fn answered(
        &self,
        message: &RateLimitRequest,
        now: Now,
        timeout: Option<Span>,
        asker: Asker,
    ) -> Result<Answered, Status> {
        if let Some(answer) = self.at_once(message, now, asker.tell) {
            return answer;
        }
        // Boxed, so that the future of a call stays small where nothing is waited for.
        Box::pin(self.later(message, now, timeout, asker)).await
    }

    fn at_once(
        &self,
        message: &RateLimitRequest,
        now: Now,
        tell: Tell,
    ) -> Option<Result<Answered, Status>> {
        self.engine.called();
        match self.read(message) {
            Ok(request) => self.decide_at_once(&request, now, |verdict| {
                self.response(&request, verdict, tell)
            }),
            Err(status) => Some(Err(status)),
        }
    }

    /// The request in encoded bytes, answered in encoded bytes, if it is plain and nothing has to be
    /// awaited.
    fn encoded_at_once(&self, message: &[u8], now: Now) -> Option<Result<Encoded, Status>> {
        let mut request = Request::default();
        wire::read(message, self.bounds, &mut request)?;
        self.decide_at_once(&request, now, |verdict| {
            let mut answer = Vec::with_capacity(ROOM * (request.descriptors.len() + 1));
            self.write(&request, verdict, &mut answer);
            Encoded(answer)
        })
    }

    /// None when something has to be awaited.
    fn decide_at_once<A>(
        &self,
        request: &Request<'_>,
        now: Now,
        answer: impl FnOnce(&Verdict<'_>) -> A,
    ) -> Option<Result<A, Status>> {
        self.engine.with_installed(|installed| {
            let mut verdict = Verdict::new();
            let decided = self
                .engine
                .decide_at_once(installed, request, now, &mut verdict)?;
            Some(match decided {
                Ok(()) => Ok(answer(&verdict)),
                Err(error) => Err(status::of(&error)),
            })
        })
    }

    /// Counts how long a call took.
    fn took(&self, start: Now) {
        self.engine.latency().observe(self.since(start));
    }

    fn since(&self, start: Now) -> Span {
        start.steady.until(self.engine.clock().now().steady)
    }

    async fn later(
        &self,
        message: &RateLimitRequest,
        now: Now,
        timeout: Option<Span>,
        asker: Asker,
    ) -> Result<Answered, Status> {
        let mut request = self.read(message)?;
        request.peer = asker.peer;
        let installed = self.engine.installed();
        let verdict = self.engine.decide(&installed, &request, now, timeout).await;
        let verdict = verdict.map_err(|error| status::of(&error))?;
        Ok(self.response(&request, &verdict, asker.tell))
    }

    fn read<'m>(&self, message: &'m RateLimitRequest) -> Result<Request<'m>, Status> {
        request(message, self.bounds).inspect_err(|_| self.engine.refused_at_the_door())
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let descriptors = &request.get_ref().descriptors;
        let allowed = self
            .privileges
            .check(descriptors, || self.privileges.holds(&request));
        allowed.inspect_err(|_| self.engine.refused_at_the_door())?;
        let start = self.engine.clock().now();
        let asker = Asker {
            tell: request.extensions().get().copied().unwrap_or_default(),
            peer: peer_of(&request, start),
        };
        let timeout = grpc_timeout(request.metadata());
        let answer = self
            .answered(request.get_ref(), start, timeout, asker)
            .await;
        self.took(start);
        let Answered { message, refusal } = answer?;
        let mut response = Response::new(message);
        if let Some(refusal) = refusal {
            response.extensions_mut().insert(refusal);
        }
        Ok(response)
    }
}

impl Asked for RateLimit {
    /// Nearly every request is read in place, decided and answered before this returns.
    fn ask(self: &Arc<Self>, request: tonic::Request<Vec<u8>>) -> Answer {
        let start = self.engine.clock().now();
        if let Some(answer) = self.encoded_at_once(request.get_ref(), start) {
            self.engine.called();
            let took = latency::sampled(|| self.since(start));
            self.engine.latency().observe(took);
            return Answer::Now(Some(answer.map(Response::new)));
        }
        let service = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            let answer = service.should_rate_limit(wire::decoded(request)?).await?;
            Ok(answer.map(|message| Encoded(message.encode_to_vec())))
        }))
    }

    const BATCHES: bool = true;

    /// Most batches are of plain requests and answered before this returns, as those are.
    fn ask_batch(self: &Arc<Self>, request: tonic::Request<Vec<u8>>) -> Answer {
        let now = self.engine.clock().now();
        if let Some(answers) = batch::at_once(self, request.get_ref(), now) {
            return Answer::Now(Some(Ok(Response::new(answers))));
        }
        let service = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            let answers = batch::called(&service, &wire::decoded(request)?).await?;
            Ok(Response::new(Encoded(answers.encode_to_vec())))
        }))
    }
}
