//! Many calls of `ShouldRateLimit` in one message.

use std::{future::poll_fn, task::Poll};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use prost::Message as _;
use tonic::{Request, Status};

use super::release;
use crate::{
    api::{
        deadline::grpc_timeout,
        envoy_rls::RateLimit,
        status,
        wire::{self, Encoded},
    },
    engine::verdict::Verdict,
    model::{
        request,
        time::{Now, Span},
    },
    proto::{
        envoy::service::ratelimit::v3::RateLimitResponse,
        porteiro::v1::{
            ShouldRateLimitBatchRequest, ShouldRateLimitBatchResponse,
            should_rate_limit_batch_response::{Answer, answer},
        },
    },
};

/// Most requests in a message.
const MAX_REQUESTS: usize = 1_000;

/// Answers an encoded message that was read at `now` without reading it in full: the requests are
/// borrowed from it, and their answers are encoded one by one. Nothing has been decided if it says
/// nothing, because of a request that is not plain or may have to wait.
///
/// Nothing that a plain request asks for is restricted to some callers.
pub(in crate::api) fn at_once(rate_limit: &RateLimit, message: &[u8], now: Now) -> Option<Encoded> {
    let requests = wire::requests_of(message, MAX_REQUESTS)?;
    let engine = rate_limit.engine();
    let installed = engine.installed();
    // One for all of them.
    let mut request = request::Request::default();
    let mut kept = request::Kept::with_capacity(requests.len());
    for message in &requests {
        wire::read(message, rate_limit.bounds(), &mut request)?;
        if !engine.answers_at_once(&installed, &request) {
            return None;
        }
        kept.push(&request);
    }
    let mut verdict = Verdict::new();
    let mut answers = Vec::with_capacity(requests.len() * ROOM);
    kept.each(&mut request, |request| {
        engine.called();
        let decided = engine.decide_in_memory(&installed, request, now, &mut verdict);
        wire::nested(ANSWER, &mut answers, |out| match decided {
            Ok(()) => wire::nested(RESPONSE, out, |out| {
                rate_limit.write(request, &verdict, out);
            }),
            Err(error) => wire::nested(PROBLEM, out, |out| {
                // A vector has room for all of it.
                let _ = release::problem(&status::of(&error)).encode(out);
            }),
        });
    });
    Some(Encoded(answers))
}

/// Bytes of most answers.
const ROOM: usize = 48;

// Tags of the protocol: number of the field × 8 + 2 for what has a length.
const ANSWER: u8 = 0x0a;
const RESPONSE: u8 = 0x0a;
const PROBLEM: u8 = 0x12;

/// Answers `ShouldRateLimitBatch`.
///
/// # Errors
/// As [`answer()`].
pub(in crate::api) async fn called(
    rate_limit: &RateLimit,
    request: &Request<ShouldRateLimitBatchRequest>,
) -> Result<ShouldRateLimitBatchResponse, Status> {
    let holds = rate_limit.privileges().holds(request);
    let timeout = grpc_timeout(request.metadata());
    answer(rate_limit, request.get_ref(), holds, timeout).await
}

/// Answers every request of a message; whether its caller `holds` privileges, and how long it waits.
///
/// They are started in their order. One that has to wait does not hold up those behind it, so that
/// the whole message waits no longer than its slowest request, and requests for a shared store
/// leave together.
///
/// # Errors
/// `INVALID_ARGUMENT` for too many requests, `PERMISSION_DENIED` if the caller may not ask for one
/// of them. What else is wrong with one of them is its own answer.
pub(super) async fn answer(
    rate_limit: &RateLimit,
    message: &ShouldRateLimitBatchRequest,
    holds: bool,
    timeout: Option<Span>,
) -> Result<ShouldRateLimitBatchResponse, Status> {
    for request in &message.requests {
        let privileges = rate_limit.privileges();
        privileges.check(&request.descriptors, || holds)?;
    }
    let count = message.requests.len();
    if count > MAX_REQUESTS {
        return Err(Status::invalid_argument(format!(
            "{count} requests in a message, at most {MAX_REQUESTS} are allowed"
        )));
    }
    let now = rate_limit.engine().clock().now();
    let mut answers = Vec::with_capacity(count);
    let mut waiting = FuturesUnordered::new();
    for (index, request) in message.requests.iter().enumerate() {
        if let Some(answer) = rate_limit.answer_at_once(request, now) {
            answers.push(told(answer));
            continue;
        }
        let mut later = Box::pin(rate_limit.answer_later(request, now, timeout));
        match poll_fn(|cx| Poll::Ready(later.as_mut().poll(cx))).await {
            Poll::Ready(answer) => answers.push(told(answer)),
            Poll::Pending => {
                // Keeps the place.
                answers.push(Answer::default());
                waiting.push(async move { (index, later.await) });
            }
        }
    }
    while let Some((index, answer)) = waiting.next().await {
        answers[index] = told(answer);
    }
    Ok(ShouldRateLimitBatchResponse { answers })
}

fn told(answer: Result<RateLimitResponse, Status>) -> Answer {
    let answer = match answer {
        Ok(response) => answer::Answer::Response(response),
        Err(status) => answer::Answer::Problem(release::problem(&status)),
    };
    Answer {
        answer: Some(answer),
    }
}
