//! Acquire: the wire's request → the engine's, and its answer back.

use smallvec::SmallVec;
use tonic::Status;

use super::words;
use crate::{
    api::{bounds::Bounds, status},
    engine::{
        Engine,
        acquire::{AcquireAnswer, AcquireError, AcquireItem, AcquireRequest, Acquiring},
    },
    model::{
        lease::{Cause, Decision, LeaseId},
        request::Entry,
        time::Span,
    },
    proto::porteiro::v1::{self as wire, acquire_request::Partial, item::Kind},
    store::lease::{Answer, ItemState, SessionId},
    telemetry::spans::{self, Noted},
};

/// Most lease ids that a request may adopt.
const MOST_ADOPTED: usize = 1_000;
/// Longest holder id and instance, in bytes.
const LONGEST_HOLDER: usize = 256;

/// Decides a request for permits; may wait.
///
/// # Cancel safety
/// Dropped while it waits, the request leaves the queue and takes nothing.
///
/// # Errors
/// `INVALID_ARGUMENT`, `RESOURCE_EXHAUSTED`, `UNAVAILABLE`, `DEADLINE_EXCEEDED`; a refusal is none.
pub(super) async fn answer(
    engine: &Engine,
    bounds: Bounds,
    message: &wire::AcquireRequest,
    timeout: Option<Span>,
    session: Option<SessionId>,
) -> Result<wire::AcquireResponse, Status> {
    let adopt = adopted(message)?;
    let mut request = read(message, bounds, &adopt)?;
    request.timeout = timeout;
    request.session = session;
    let acquiring = {
        let installed = engine.installed();
        engine.acquire(&installed, &request, engine.clock().now())
    };
    let answer = match acquiring.map_err(|error| refused(&error))? {
        Acquiring::Now(answer) => answer,
        Acquiring::Waits(waits) => waits
            .answer(engine)
            .await
            .map_err(|error| refused(&error))?,
    };
    spans::note(|| noted(&message.domain, &answer));
    log_refusal(engine, &message.domain, &answer);
    engine.count_acquire(&request, &answer);
    Ok(response(engine, &answer))
}

/// Logs a refusal, if it is one of those that are.
fn log_refusal(engine: &Engine, domain: &str, answered: &AcquireAnswer) {
    if answered.answer.is_go() {
        return;
    }
    let now = engine.clock().now().steady;
    let Some(more) = engine.refusal_log().pass(now) else {
        return;
    };
    let Noted { limit, reason, .. } = noted(domain, answered);
    let retry_after = answered.answer.retry_after.map(Span::as_secs_f64);
    tracing::info!(domain, limit, reason, retry_after, more, "acquire refused");
}

/// For the span of the call.
fn noted<'n>(domain: &'n str, answered: &AcquireAnswer) -> Noted<'n> {
    let answer = &answered.answer;
    let short = answer.offender.or(answer.limiting.first().copied());
    let name = short.and_then(|item| answered.names.get(item));
    Noted {
        domain,
        is_refused: !answer.is_go(),
        limit: name.map(ToString::to_string),
        reason: answer.cause.map(Cause::label),
    }
}

fn refused(error: &AcquireError) -> Status {
    match error {
        AcquireError::Decide(error) => status::of(error),
        AcquireError::Ask(error) => status::of_ask(*error),
        AcquireError::Stopping => Status::unavailable(error.to_string()),
        AcquireError::TooLate => Status::deadline_exceeded(error.to_string()),
    }
}

fn adopted(message: &wire::AcquireRequest) -> Result<Vec<LeaseId>, Status> {
    if message.adopt.len() > MOST_ADOPTED {
        return Err(Status::invalid_argument(format!(
            "adopt has more than {MOST_ADOPTED} ids"
        )));
    }
    let read = |id: &String| {
        id.parse()
            .map_err(|no| Status::invalid_argument(format!("adopt: {no}")))
    };
    message.adopt.iter().map(read).collect()
}

fn read<'m>(
    message: &'m wire::AcquireRequest,
    bounds: Bounds,
    adopt: &'m [LeaseId],
) -> Result<AcquireRequest<'m>, Status> {
    if message.domain.len() > bounds.max_key {
        return Err(Status::invalid_argument(format!(
            "the domain has {} bytes, at most {} are allowed",
            message.domain.len(),
            bounds.max_key
        )));
    }
    if message.items.len() > bounds.max_descriptors {
        return Err(Status::invalid_argument(format!(
            "{} items, at most {} are allowed",
            message.items.len(),
            bounds.max_descriptors
        )));
    }
    if let Some(holder) = &message.holder
        && holder.id.len().max(holder.instance.len()) > LONGEST_HOLDER
    {
        return Err(Status::invalid_argument(format!(
            "holder.id and holder.instance have at most {LONGEST_HOLDER} bytes"
        )));
    }
    let items = message
        .items
        .iter()
        .enumerate()
        .map(|(index, wire)| item(index, wire, bounds));
    Ok(AcquireRequest {
        domain: &message.domain,
        items: items.collect::<Result<_, _>>()?,
        request_id: &message.request_id,
        holder: words::holder(message.holder.as_ref()),
        ttl: words::span("ttl", message.ttl)?,
        expected_hold: words::span("expected_hold", message.expected_hold)?,
        max_wait: words::span("max_wait", message.max_wait)?,
        timeout: None,
        criticality: words::criticality(message.criticality),
        cohort: u8::try_from(message.fairness.min(127)).ok(),
        adopt,
        partial: message.partial == i32::from(Partial::Permits),
        dry_run: message.dry_run,
        refuse_unknown: message.refuse_unknown,
        session: None,
    })
}

fn item(index: usize, wire: &wire::Item, bounds: Bounds) -> Result<AcquireItem<'_>, Status> {
    let Some(descriptor) = &wire.descriptor else {
        return Err(Status::invalid_argument(format!(
            "items[{index}].descriptor is missing"
        )));
    };
    crate::api::envoy_rls::check(descriptor, bounds)?;
    let entries: SmallVec<[Entry<'_>; 4]> = descriptor
        .entries
        .iter()
        .map(|entry| Entry {
            key: &entry.key,
            value: &entry.value,
        })
        .collect();
    let permits = wire.permits.unwrap_or(1);
    let hits = wire.hits.unwrap_or(1);
    let kind = Kind::try_from(wire.kind).unwrap_or(Kind::All);
    Ok(AcquireItem {
        entries,
        permits: (kind != Kind::Rate).then_some(permits),
        unsaid: wire.permits.is_none(),
        least: wire.min_permits.unwrap_or(1).min(permits),
        hits: (kind != Kind::Concurrency).then_some(hits),
    })
}

fn response(engine: &Engine, given: &AcquireAnswer) -> wire::AcquireResponse {
    let Answer {
        decision,
        leases,
        items,
        ..
    } = &*given.answer;
    let answer = &given.answer;
    let ended_by = match decision {
        Decision::Ended(by) => words::ended_by(*by).into(),
        _ => 0,
    };
    let life = |span: Span| (!span.is_zero()).then(|| words::duration(span));
    let index = |place: &usize| u32::try_from(*place).unwrap_or(u32::MAX);
    wire::AcquireResponse {
        decision: words::decision(*decision).into(),
        lease_id: leases.first().map(ToString::to_string).unwrap_or_default(),
        ended_by,
        fence: answer.fence,
        expires_in: life(answer.expires_in),
        renew_after: life(answer.renew_after),
        items: items
            .iter()
            .zip(&given.names)
            .map(|(item, name)| state(item, name))
            .collect(),
        limiting: answer
            .limiting
            .iter()
            .chain(&answer.offender)
            .map(index)
            .collect(),
        cause: answer.cause.map_or(0, |cause| words::cause(cause).into()),
        retry_after: answer.retry_after.map(words::duration),
        hopeless: answer.hopeless,
        http_status: http_status(answer),
        boot: engine.leases().boot(),
        waited: life(answer.waited),
        degraded: given.degraded,
    }
}

fn http_status(answer: &Answer) -> u32 {
    match answer.decision {
        Decision::Granted | Decision::Replayed | Decision::WouldGrant => 0,
        Decision::Conflict | Decision::Ended(_) => 409,
        Decision::UnknownKey => 404,
        Decision::Draining => 503,
        Decision::Refused if answer.shared => 503,
        Decision::Refused | Decision::Never => 429,
    }
}

fn state(item: &ItemState, name: &str) -> wire::ItemState {
    wire::ItemState {
        limit: item.limit,
        in_flight: item.in_flight,
        remaining: item.remaining,
        waiters: item.waiters,
        granted: item.granted,
        mean_hold: Some(words::duration(Span::from_secs_f64(item.mean_hold))),
        throughput: item.throughput,
        limit_name: name.to_owned(),
        shadow: item.shadow_short,
    }
}
