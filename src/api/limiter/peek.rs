//! Peek: the wire's question → the engine's look, and what it shows back.

use tonic::Status;

use super::words;
use crate::{
    algorithm::Retry,
    api::{bounds::Bounds, envoy_rls, shown, status},
    engine::{
        Engine,
        peek::Peeked,
        resolve::Touched,
        standing::{Reason, Standing},
        verdict::{Code, Status as DescriptorVerdict, Verdict},
    },
    model::{key::CounterKey, request::Request, time::Span},
    proto::{
        envoy::extensions::common::ratelimit::v3::RateLimitDescriptor,
        porteiro::v1::{
            self as wire,
            peek_response::{LeakingHolder, Place},
            peeked_limit::InFlight,
        },
    },
    store::{
        Role,
        fleet::Fleet,
        lease::{KeyView, LeaseBook, LeaseView},
        leases::Keeper,
        redis::StoreError,
    },
};

/// Answers one question.
///
/// # Errors
/// `INVALID_ARGUMENT`, `UNAVAILABLE`.
pub(in crate::api) async fn answer(
    engine: &Engine,
    bounds: Bounds,
    message: &wire::PeekRequest,
) -> Result<wire::PeekResponse, Status> {
    let request = read(
        &message.domain,
        &message.descriptors,
        message.hits_addend,
        bounds,
    )?;
    let installed = engine.installed();
    let peeked = engine.peek(&installed, &request).await;
    let peeked = peeked.map_err(|error| status::of(&error))?;
    let mut response = response(&peeked);
    if message.leases > 0
        && let Some(domain) = peeked.verdict.domain
    {
        let now = peeked.verdict.now;
        let keeper = engine.leases().keeper(&domain.name, now);
        let most = usize::try_from(message.leases).unwrap_or(MOST_LEASES);
        let most = most.min(MOST_LEASES);
        match keeper.map_err(status::of_ask)? {
            Keeper::Book(book) => {
                book.with(now, |book| list(&mut response, &peeked.verdict, book, most));
            }
            Keeper::Fleet(fleet) => {
                list_shared(&mut response, &peeked.verdict, &fleet, most)
                    .await
                    .map_err(|error| status::of(&error.into()))?;
            }
        }
    }
    Ok(response)
}

/// Most leases of a limit that are listed.
const MOST_LEASES: usize = 100;
/// Most leaking holders that are listed.
const MOST_LEAKING: usize = 10;

/// Adds who holds permits, and who leaks them.
fn list(response: &mut wire::PeekResponse, verdict: &Verdict<'_>, book: &LeaseBook, most: usize) {
    let leaking = book.leaking_holders(MOST_LEAKING).into_iter();
    response.leaking_holders = leaking
        .map(|(holder, count)| LeakingHolder {
            holder: holder.to_string(),
            expired: count.expired,
            granted: count.granted,
            live: count.live,
        })
        .collect();
    for (status, descriptor) in verdict.statuses().zip(&mut response.descriptors) {
        let permits = status.touched.and_then(|touched| touched.permits.as_ref());
        let shown = descriptor.limits.last_mut();
        if let (Some(permits), Some(shown)) = (permits, shown) {
            let leases = book.oldest_leases(permits.key, most, verdict.now.steady);
            shown.leases = leases.iter().map(lease).collect();
        }
    }
}

/// Most leases that one call of a shared store's script reads.
const MOST_SHARED: usize = 1_000;

/// The same of leases in a shared store, which does not know who leaks: all in one call of its
/// script.
async fn list_shared(
    response: &mut wire::PeekResponse,
    verdict: &Verdict<'_>,
    fleet: &Fleet,
    most: usize,
) -> Result<(), StoreError> {
    let key = |status: &DescriptorVerdict<'_, '_>| {
        let permits = status.touched.and_then(|touched| touched.permits.as_ref());
        permits.map(|permits| permits.key)
    };
    let keys: Vec<CounterKey> = verdict
        .statuses()
        .filter_map(|status| key(&status))
        .collect();
    if keys.is_empty() {
        return Ok(());
    }
    let most = most.min((MOST_SHARED / keys.len()).max(1));
    let mut listed = fleet.leases(&keys, most).await?.into_iter();
    for (status, descriptor) in verdict.statuses().zip(&mut response.descriptors) {
        if let (Some(_), Some(shown)) = (key(&status), descriptor.limits.last_mut()) {
            let leases = listed.next().unwrap_or_default();
            shown.leases = leases.iter().map(lease).collect();
        }
    }
    Ok(())
}

fn lease(view: &LeaseView) -> wire::peeked_limit::Lease {
    wire::peeked_limit::Lease {
        holder: Some(wire::Holder {
            id: view.holder.to_string(),
            instance: view.instance.to_string(),
        }),
        permits: view.permits,
        age: Some(words::duration(view.age)),
        expires_in: Some(words::duration(view.expires_in)),
        in_session: view.in_session,
    }
}

/// Reads what is to be looked at within bounds. A look gives nothing back.
pub(super) fn read<'m>(
    domain: &'m str,
    descriptors: &'m [RateLimitDescriptor],
    hits_addend: u32,
    bounds: Bounds,
) -> Result<Request<'m>, Status> {
    let mut request = envoy_rls::named(domain, descriptors, bounds)?;
    request.hits_addend = hits_addend;
    for descriptor in &mut request.descriptors {
        descriptor.is_negative_hits = false;
    }
    Ok(request)
}

pub(super) fn response(peeked: &Peeked<'_>) -> wire::PeekResponse {
    let verdict = &peeked.verdict;
    let standings = verdict.standings();
    let binding = standings.first();
    let statuses = verdict.statuses().zip(&peeked.in_flight);
    let refused = verdict.code == Code::OverLimit;
    wire::PeekResponse {
        would_pass: !refused,
        retry_after: verdict.retry().and_then(hint),
        reason: binding
            .filter(|_| refused)
            .map_or(0, |standing| reason(standing.refused)),
        binding: binding.and_then(|standing| place(verdict, standing)),
        descriptors: statuses
            .map(|(status, in_flight)| descriptor(&status, in_flight.as_ref()))
            .collect(),
        leaking_holders: Vec::new(),
    }
}

fn place(verdict: &Verdict<'_>, binding: &Standing<'_>) -> Option<Place> {
    let places = verdict.statuses().enumerate().find_map(|(index, status)| {
        let limits = status.limits();
        let limit = limits.iter().position(|limit| limit.key == binding.key)?;
        Some((index, limit))
    });
    let (descriptor, limit) = places?;
    Some(Place {
        descriptor: u32::try_from(descriptor).ok()?,
        limit: u32::try_from(limit).ok()?,
    })
}

fn descriptor(
    status: &DescriptorVerdict<'_, '_>,
    in_flight: Option<&KeyView>,
) -> wire::PeekedDescriptor {
    let rule = status.touched.and_then(Touched::rule);
    wire::PeekedDescriptor {
        rule: rule.map(|rule| rule.path.clone()).unwrap_or_default(),
        would_pass: status.code == Code::Ok,
        unlimited: status.is_unlimited(),
        shadow: status.touched.is_some_and(|touched| touched.shadow),
        quota: status.role() == Role::Quota,
        limits: status
            .limits()
            .iter()
            .map(|standing| limit(standing, in_flight))
            .collect(),
    }
}

fn limit(standing: &Standing<'_>, estimates: Option<&KeyView>) -> wire::PeekedLimit {
    let is_in_flight = standing.algorithm.is_none();
    let refused = standing.refused.is_some();
    wire::PeekedLimit {
        name: standing.name.unwrap_or_default().to_owned(),
        algorithm: standing
            .algorithm
            .map_or("concurrency", |algorithm| shown::algorithm(algorithm).0)
            .to_owned(),
        limit: standing.capacity,
        window: standing.window.map(words::duration),
        used: standing.used,
        remaining: standing.remaining,
        reset: (!is_in_flight).then(|| words::duration(standing.reset)),
        would_pass: !refused,
        retry_after: hint(standing.retry).filter(|_| refused),
        reason: reason(standing.refused),
        more_after: standing.more.map(words::duration),
        in_flight: estimates.filter(|_| is_in_flight).map(in_flight),
        leases: Vec::new(),
    }
}

fn in_flight(view: &KeyView) -> InFlight {
    InFlight {
        leases: view.leases,
        waiters: view.waiters,
        mean_hold: Some(words::duration(Span::from_secs_f64(view.mean_hold))),
        arrival_rate: view.arrival_rate,
        throughput: view.throughput,
        mean_in_flight: view.mean_in_flight,
        reserved: view.reserved,
    }
}

fn hint(retry: Retry) -> Option<prost_types::Duration> {
    match retry {
        Retry::After(wait) => Some(words::duration(wait)),
        Retry::Never => None,
    }
}

fn reason(reason: Option<Reason>) -> i32 {
    let wire = match reason {
        None => wire::Reason::Unspecified,
        Some(Reason::Rate) => wire::Reason::Rate,
        Some(Reason::Concurrency) => wire::Reason::Concurrency,
        Some(Reason::Global) => wire::Reason::Global,
        Some(Reason::Shared) => wire::Reason::Shared,
        Some(Reason::Shed) => wire::Reason::Shed,
        Some(Reason::Never) => wire::Reason::Never,
        Some(Reason::Degraded) => wire::Reason::Degraded,
    };
    wire.into()
}
