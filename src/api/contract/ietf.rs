//! `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers, in the shapes of
//! drafts 03, 07 and 10.

use std::borrow::Cow;

use sfv::{BareItem, Integer, KeyRef, ListSerializer, String as SfString, StringRef};

use crate::{
    api::contract::{Contract, Told, push, visible},
    engine::standing::{Reason, Standing},
    model::time::Span,
    proto::envoy::config::core::v3::HeaderValue,
    rules::{
        answer::{Ietf, IetfVersion},
        limit::CostUnit,
    },
};

/// Largest integer of a structured field: 15 digits.
const MOST: u64 = 999_999_999_999_999;

/// Adds the fields of the chosen draft.
pub(super) fn add(contract: &Contract<'_>, options: Ietf, headers: &mut Vec<HeaderValue>) {
    let limits: Vec<&Told<'_>> = contract.advertised().collect();
    let Some(closest) = limits.first().map(|told| &told.standing) else {
        return;
    };
    match options.version {
        IetfVersion::Draft10 => draft_10(&limits, options.partition_key, headers),
        IetfVersion::Draft07 => draft_07(closest, &limits, headers),
        IetfVersion::Draft03 => draft_03(closest, &limits, headers),
    }
}

fn draft_10(told: &[&Told<'_>], partition_key: bool, headers: &mut Vec<HeaderValue>) {
    let mut policies = ListSerializer::new();
    for Told { name, standing } in in_order_of_request(told) {
        let Ok(name) = StringRef::from_str(name) else {
            continue;
        };
        let policy = policies
            .bare_item(name)
            .parameter(key("q"), integer(standing.capacity));
        let unit = unit(standing).and_then(|unit| SfString::try_from(unit.into_owned()).ok());
        let policy = match &unit {
            Some(unit) => policy.parameter(key("qu"), unit),
            None => policy,
        };
        let policy = match standing.window {
            Some(window) => policy.parameter(key("w"), integer(window.as_secs_up().max(1))),
            None => policy,
        };
        if partition_key {
            policy.parameter(key("pk"), &partition(standing));
        }
    }
    let mut limits = ListSerializer::new();
    for Told { name, standing } in told {
        let Ok(name) = StringRef::from_str(name) else {
            continue;
        };
        let limit = limits
            .bare_item(name)
            .parameter(key("r"), integer(standing.remaining));
        let limit = match until_more(standing) {
            Some(seconds) => limit.parameter(key("t"), integer(seconds)),
            None => limit,
        };
        if partition_key {
            limit.parameter(key("pk"), &partition(standing));
        }
    }
    if let (Some(policies), Some(limits)) = (policies.finish(), limits.finish()) {
        push(headers, "RateLimit-Policy", &policies);
        push(headers, "RateLimit", &limits);
    }
}

/// Policies stay the same from answer to answer, whichever limit is the closest.
fn in_order_of_request<'t, 'v>(told: &[&'t Told<'v>]) -> Vec<&'t Told<'v>> {
    let mut told = told.to_vec();
    told.sort_by_key(|told| told.standing.place);
    told
}

/// `pk`: tells callers apart without saying who they are.
fn partition(standing: &Standing<'_>) -> BareItem {
    let bytes = standing.key.bits().to_be_bytes();
    BareItem::ByteSequence(bytes.iter().take(8).copied().collect())
}

/// `t`: whole seconds until more can be had, rounded up, so never 0 while nothing is left. Left
/// out where time alone brings nothing more: work in flight, limits of which nothing is used, costs
/// that can never pass.
fn until_more(standing: &Standing<'_>) -> Option<u64> {
    standing.window?;
    if standing.refused == Some(Reason::Never) {
        return None;
    }
    standing.more.map(Span::as_secs_up)
}

/// `reset` of the older drafts, which cannot be left out.
fn reset(standing: &Standing<'_>) -> u64 {
    until_more(standing).unwrap_or(standing.reset.as_secs_up())
}

fn draft_07(binding: &Standing<'_>, all: &[&Told<'_>], headers: &mut Vec<HeaderValue>) {
    let reset = reset(binding);
    let (limit, remaining) = (binding.capacity.min(MOST), binding.remaining.min(MOST));
    let value = format!("limit={limit}, remaining={remaining}, reset={reset}");
    push(headers, "RateLimit", &value);
    push(headers, "RateLimit-Policy", &quota_policies(all));
}

fn draft_03(binding: &Standing<'_>, all: &[&Told<'_>], headers: &mut Vec<HeaderValue>) {
    let limit = binding.capacity.min(MOST);
    push(
        headers,
        "RateLimit-Limit",
        &format!("{limit}, {}", quota_policies(all)),
    );
    push(
        headers,
        "RateLimit-Remaining",
        &binding.remaining.min(MOST).to_string(),
    );
    let reset = reset(binding);
    push(headers, "RateLimit-Reset", &reset.to_string());
}

/// `100;w=60, 5000;w=86400`
fn quota_policies(all: &[&Told<'_>]) -> String {
    let policy = |Told { standing, .. }: &Told<'_>| match standing.window {
        Some(window) => {
            format!(
                "{};w={}",
                standing.capacity.min(MOST),
                window.as_secs_up().max(1)
            )
        }
        None => standing.capacity.min(MOST).to_string(),
    };
    let policies: Vec<String> = in_order_of_request(all).into_iter().map(policy).collect();
    policies.join(", ")
}

/// `qu`, left out for requests.
fn unit<'v>(standing: &'v Standing<'_>) -> Option<Cow<'v, str>> {
    match (standing.window, standing.cost_unit) {
        (None, _) => Some(Cow::from("concurrent-requests")),
        (Some(_), CostUnit::Requests) => None,
        (Some(_), CostUnit::Bytes) => Some(Cow::from("content-bytes")),
        (Some(_), CostUnit::Named(name)) => Some(Cow::from(visible(name))),
    }
}

fn integer(value: u64) -> Integer {
    i64::try_from(value.min(MOST))
        .ok()
        .and_then(|value| Integer::try_from(value).ok())
        .unwrap_or(Integer::MAX)
}

fn key(name: &'static str) -> &'static KeyRef {
    KeyRef::constant(name)
}
