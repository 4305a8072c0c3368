//! Many calls of `ShouldRateLimit` in one message.

use std::{future::poll_fn, task::Poll};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tonic::Status;

use super::release;
use crate::{
    api::envoy_rls::RateLimit,
    model::time::{Now, Span},
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

/// Answers every request of a message that was read at `now`.
///
/// They are started in their order. One that has to wait does not hold up those behind it, so that
/// the whole message waits no longer than its slowest request, and requests for a shared store
/// leave together.
///
/// # Errors
/// `INVALID_ARGUMENT` for too many requests. What is wrong with one of them is its own answer.
pub(super) async fn answer(
    rate_limit: &RateLimit,
    message: &ShouldRateLimitBatchRequest,
    now: Now,
    timeout: Option<Span>,
) -> Result<ShouldRateLimitBatchResponse, Status> {
    let count = message.requests.len();
    if count > MAX_REQUESTS {
        return Err(Status::invalid_argument(format!(
            "{count} requests in a message, at most {MAX_REQUESTS} are allowed"
        )));
    }
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
