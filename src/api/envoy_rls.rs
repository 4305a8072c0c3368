//! Envoy's rate limit service: `RateLimitRequest` → [`Request`], [`Verdict`] →
//! `RateLimitResponse`. All of Envoy's words end here.

use std::sync::Arc;

use prost::Message as _;
use tonic::{Response, Status};

use crate::{
    algorithm::Retry,
    api::{
        bounds::Bounds,
        contract::{Contract, add_metadata},
        deadline::grpc_timeout,
        headers::{HeaderNames, reference_headers},
        limiter::batch,
        metadata::reference_metadata,
        privileges::Privileges,
        status,
        wire::{self, Answer, Asked, Encoded},
    },
    engine::{
        Engine,
        standing::Reason,
        verdict::{Code, Status as DescriptorVerdict, Verdict},
    },
    model::{
        lease::Peer,
        request::{Entry, Override, Request, Unit},
        time::{Now, Span},
    },
    proto::envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response,
            rate_limit_service_server::RateLimitService,
        },
        r#type::v3::RateLimitUnit,
    },
    rules::limit::Shown,
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

/// A refusal as HTTP tells it; an extension of the response to [`Tell::Http`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The limit that takes longest to pass is one that callers share, or the refusal is shedding:
    /// 503 and not 429 over HTTP.
    pub others_fault: bool,
    /// When to come back; none when never.
    pub retry_after: Option<Span>,
}

impl Refusal {
    fn of(verdict: &Verdict<'_>) -> Option<Self> {
        let retry_after = match verdict.retry()? {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        };
        let standings = verdict.standings();
        let reason = standings.first().and_then(|binding| binding.refused);
        Some(Self {
            others_fault: reason.is_some_and(Reason::is_others_fault),
            retry_after,
        })
    }
}

/// Who wants to know; as an extension of the request. Without one it is Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// It has the message.
    #[default]
    Envoy,
    /// It needs a [`Refusal`].
    Http,
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
        let installed = self.engine.installed();
        let mut verdict = Verdict::new();
        let decided = self
            .engine
            .decide_at_once(&installed, request, now, &mut verdict)?;
        Some(match decided {
            Ok(()) => Ok(answer(&verdict)),
            Err(error) => Err(status::of(&error)),
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

    fn response(&self, request: &Request<'_>, verdict: &Verdict<'_>, tell: Tell) -> Answered {
        let mut message = RateLimitResponse::default();
        self.respond(request, verdict, &mut message);
        Answered {
            message,
            refusal: match tell {
                Tell::Envoy => None,
                Tell::Http => Refusal::of(verdict),
            },
        }
    }

    /// Appends the encoded answer: [`RateLimit::respond`] without the message.
    pub(super) fn write(&self, request: &Request<'_>, verdict: &Verdict<'_>, out: &mut Vec<u8>) {
        wire::write(verdict, out);
        let promises = verdict.domain.is_some_and(|d| !d.answer.is_nothing());
        if promises || self.options.headers.is_some() || self.options.dynamic_metadata {
            let mut more = RateLimitResponse::default();
            self.add_more(request, verdict, &mut more);
            // Messages one after the other are one message. A vector has room for all of it.
            let _ = more.encode(out);
        }
    }

    /// Writes the answer into an empty message.
    pub(super) fn respond(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        response: &mut RateLimitResponse,
    ) {
        response.overall_code = code(verdict.code).into();
        let statuses = verdict.statuses().map(descriptor_status);
        response.statuses.extend(statuses);
        self.add_more(request, verdict, response);
    }

    /// Adds what an answer has besides code and statuses.
    fn add_more(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        response: &mut RateLimitResponse,
    ) {
        let ours = verdict.domain.is_some_and(|domain| {
            let answer = &domain.answer;
            let told = verdict.code == Code::OverLimit || answer.pass_headers.has(request);
            answer.headers.reference && told
        });
        let names = match &self.options.headers {
            None if ours => Some(&self.default_names),
            names => names.as_ref(),
        };
        if let Some(names) = names {
            response.response_headers_to_add = reference_headers(names, verdict);
        }
        if self.options.dynamic_metadata {
            response.dynamic_metadata = Some(reference_metadata(request, verdict));
        }
        if verdict
            .domain
            .is_some_and(|domain| !domain.answer.is_nothing())
        {
            keep_contract(request, verdict, response);
        }
    }
}

/// Adds what the domain promised its clients.
fn keep_contract(request: &Request<'_>, verdict: &Verdict<'_>, response: &mut RateLimitResponse) {
    let contract = Contract::new(verdict);
    if verdict.domain.is_some_and(|domain| domain.answer.metadata) {
        let metadata = response.dynamic_metadata.get_or_insert_default();
        add_metadata(contract.as_ref(), verdict, metadata);
    }
    let Some(contract) = contract else {
        return;
    };
    response
        .response_headers_to_add
        .extend(contract.headers(request));
    if let Some((content_type, body)) = contract.body(request) {
        response.raw_body = body;
        response.response_headers_to_add.push(HeaderValue {
            key: "Content-Type".to_owned(),
            value: content_type.to_owned(),
            raw_value: Vec::new(),
        });
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

/// Reads a message within bounds.
///
/// # Errors
/// `INVALID_ARGUMENT` with a text that names the bound, or the override that cannot be.
pub fn request(message: &RateLimitRequest, bounds: Bounds) -> Result<Request<'_>, Status> {
    let mut request = named(&message.domain, &message.descriptors, bounds)?;
    request.hits_addend = message.hits_addend;
    Ok(request)
}

/// Reads domain and descriptors within bounds.
///
/// # Errors
/// As [`request`].
pub fn named<'m>(
    domain: &'m str,
    descriptors: &'m [RateLimitDescriptor],
    bounds: Bounds,
) -> Result<Request<'m>, Status> {
    let count = descriptors.len();
    if count > bounds.max_descriptors {
        return Err(beyond(
            "descriptors in a request",
            count,
            bounds.max_descriptors,
        ));
    }
    if domain.len() > bounds.max_key {
        return Err(beyond("bytes in a domain", domain.len(), bounds.max_key));
    }
    let mut request = Request::new(domain);
    for (index, wire) in descriptors.iter().enumerate() {
        check(wire, bounds)?;
        let entries = wire.entries.iter();
        let entries = entries.map(|entry| Entry {
            key: &entry.key,
            value: &entry.value,
        });
        let descriptor = request.add(entries);
        descriptor.hits_addend = wire.hits_addend;
        descriptor.is_negative_hits = wire.is_negative_hits;
        if let Some(limit) = &wire.limit {
            descriptor.limit = Some(override_limit(index, *limit)?);
        }
    }
    Ok(request)
}

/// Checks a descriptor against the bounds.
///
/// # Errors
/// `INVALID_ARGUMENT` with a text that names the bound.
pub fn check(wire: &RateLimitDescriptor, bounds: Bounds) -> Result<(), Status> {
    if wire.entries.len() > bounds.max_entries {
        return Err(beyond(
            "entries in a descriptor",
            wire.entries.len(),
            bounds.max_entries,
        ));
    }
    for entry in &wire.entries {
        if entry.key.len() > bounds.max_key {
            return Err(beyond("bytes in a key", entry.key.len(), bounds.max_key));
        }
        if entry.value.len() > bounds.max_value {
            return Err(beyond(
                "bytes in a value",
                entry.value.len(),
                bounds.max_value,
            ));
        }
    }
    Ok(())
}

fn beyond(what: &str, found: usize, most: usize) -> Status {
    Status::invalid_argument(format!("{found} {what}, at most {most} are allowed"))
}

fn override_limit(
    index: usize,
    wire: rate_limit_descriptor::RateLimitOverride,
) -> Result<Override, Status> {
    let unit = match RateLimitUnit::try_from(wire.unit) {
        Ok(RateLimitUnit::Second) => Unit::Second,
        Ok(RateLimitUnit::Minute) => Unit::Minute,
        Ok(RateLimitUnit::Hour) => Unit::Hour,
        Ok(RateLimitUnit::Day) => Unit::Day,
        Ok(RateLimitUnit::Month) => Unit::Month,
        Ok(RateLimitUnit::Year) => Unit::Year,
        Ok(RateLimitUnit::Unknown) | Err(_) => {
            return Err(Status::invalid_argument(format!(
                "descriptors[{index}].limit.unit is {}, but must be one of SECOND, MINUTE, HOUR, \
                 DAY, MONTH, YEAR",
                wire.unit
            )));
        }
    };
    Ok(Override {
        requests_per_unit: wire.requests_per_unit,
        unit,
        unit_multiplier: wire.unit_multiplier.unwrap_or(1).max(1),
    })
}

/// As the protocol numbers it.
pub(super) fn code(code: Code) -> rate_limit_response::Code {
    match code {
        Code::Ok => rate_limit_response::Code::Ok,
        Code::OverLimit => rate_limit_response::Code::OverLimit,
    }
}

fn descriptor_status(status: DescriptorVerdict<'_, '_>) -> rate_limit_response::DescriptorStatus {
    let mut wire = rate_limit_response::DescriptorStatus {
        code: code(status.code).into(),
        ..rate_limit_response::DescriptorStatus::default()
    };
    if let Some(told) = status.told() {
        wire.current_limit = Some(current_limit(told.name, told.shown));
        wire.limit_remaining = u32::try_from(told.remaining).unwrap_or(u32::MAX);
        // Envoy reads the seconds and drops the rest, so they are rounded up here.
        let seconds = i64::try_from(told.reset.as_secs_up()).unwrap_or(i64::MAX);
        wire.duration_until_reset = Some(prost_types::Duration { seconds, nanos: 0 });
    } else if status.is_unlimited() {
        wire.limit_remaining = u32::MAX;
    }
    wire
}

fn current_limit(name: &str, shown: Shown) -> rate_limit_response::RateLimit {
    rate_limit_response::RateLimit {
        name: name.to_owned(),
        requests_per_unit: shown.requests_per_unit,
        unit: unit(shown.unit).into(),
        unit_multiplier: (shown.unit_multiplier > 1).then_some(shown.unit_multiplier),
    }
}

/// As the protocol numbers it.
pub(super) fn unit(unit: Option<Unit>) -> rate_limit_response::rate_limit::Unit {
    use rate_limit_response::rate_limit::Unit as Wire;
    match unit {
        None => Wire::Unknown,
        Some(Unit::Second) => Wire::Second,
        Some(Unit::Minute) => Wire::Minute,
        Some(Unit::Hour) => Wire::Hour,
        Some(Unit::Day) => Wire::Day,
        Some(Unit::Week) => Wire::Week,
        Some(Unit::Month) => Wire::Month,
        Some(Unit::Year) => Wire::Year,
    }
}
