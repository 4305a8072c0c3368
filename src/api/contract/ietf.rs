//! `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers, in the shapes of
//! drafts 03, 07 and 10.

use sfv::{BareItem, Integer, KeyRef, ListSerializer, String as SfString, StringRef};
use smallvec::SmallVec;

use crate::{
    api::contract::{Contract, policy_name, push},
    engine::standing::Standing,
    model::time::Span,
    proto::envoy::config::core::v3::HeaderValue,
    rules::{
        answer::{Ietf, IetfVersion},
        limit::CostUnit,
    },
};

/// Most policies in one answer, the most restrictive first.
const MOST_POLICIES: usize = 8;
/// Largest integer of a structured field: 15 digits.
const MOST: u64 = 999_999_999_999_999;

/// Adds the fields of the chosen draft.
pub(super) fn add(contract: &Contract<'_>, options: Ietf, headers: &mut Vec<HeaderValue>) {
    let mut sorted: SmallVec<[&Standing<'_>; 8]> = contract.standings.iter().collect();
    sorted.sort_by_key(|standing| (standing.refused.is_none(), standing.remaining));
    sorted.truncate(MOST_POLICIES);
    match options.version {
        IetfVersion::Draft10 => draft_10(&sorted, options.partition_key, headers),
        IetfVersion::Draft07 => draft_07(contract.binding, &sorted, headers),
        IetfVersion::Draft03 => draft_03(contract.binding, &sorted, headers),
    }
}

fn draft_10(sorted: &[&Standing<'_>], partition_key: bool, headers: &mut Vec<HeaderValue>) {
    let mut policies = ListSerializer::new();
    let mut limits = ListSerializer::new();
    for standing in sorted {
        let Ok(name) = SfString::try_from(policy_name(standing)) else {
            continue;
        };
        let name: &StringRef = &name;
        let policy = policies
            .bare_item(name)
            .parameter(key("q"), integer(standing.capacity));
        let policy = match unit(standing) {
            Some(unit) => policy.parameter(key("qu"), unit),
            None => policy,
        };
        let policy = match standing.window {
            Some(window) => policy.parameter(key("w"), integer(window.as_secs_up().max(1))),
            None => policy,
        };
        let limit = limits
            .bare_item(name)
            .parameter(key("r"), integer(standing.remaining));
        let limit = match until_more(standing) {
            Some(seconds) => limit.parameter(key("t"), integer(seconds)),
            None => limit,
        };
        if partition_key {
            let bytes = standing.key.bits().to_be_bytes();
            let shown = BareItem::ByteSequence(bytes.iter().take(8).copied().collect());
            policy.parameter(key("pk"), &shown);
            limit.parameter(key("pk"), &shown);
        }
    }
    if let (Some(policies), Some(limits)) = (policies.finish(), limits.finish()) {
        push(headers, "RateLimit-Policy", policies);
        push(headers, "RateLimit", limits);
    }
}

/// `t`: whole seconds until more can be had, rounded up, so never 0 while nothing is left. Left
/// out where time alone brings nothing back: work in flight, costs that can never pass.
fn until_more(standing: &Standing<'_>) -> Option<u64> {
    standing.window?;
    standing.until_more().map(Span::as_secs_up)
}

fn draft_07(binding: &Standing<'_>, all: &[&Standing<'_>], headers: &mut Vec<HeaderValue>) {
    let reset = until_more(binding).unwrap_or_default();
    let (limit, remaining) = (binding.capacity.min(MOST), binding.remaining.min(MOST));
    let value = format!("limit={limit}, remaining={remaining}, reset={reset}");
    push(headers, "RateLimit", value);
    push(headers, "RateLimit-Policy", quota_policies(all));
}

fn draft_03(binding: &Standing<'_>, all: &[&Standing<'_>], headers: &mut Vec<HeaderValue>) {
    let limit = binding.capacity.min(MOST);
    push(
        headers,
        "RateLimit-Limit",
        format!("{limit}, {}", quota_policies(all)),
    );
    push(
        headers,
        "RateLimit-Remaining",
        binding.remaining.min(MOST).to_string(),
    );
    let reset = until_more(binding).unwrap_or_default();
    push(headers, "RateLimit-Reset", reset.to_string());
}

/// `100;w=60, 5000;w=86400`
fn quota_policies(all: &[&Standing<'_>]) -> String {
    let policy = |standing: &&Standing<'_>| match standing.window {
        Some(window) => {
            format!(
                "{};w={}",
                standing.capacity.min(MOST),
                window.as_secs_up().max(1)
            )
        }
        None => standing.capacity.min(MOST).to_string(),
    };
    all.iter().map(policy).collect::<Vec<_>>().join(", ")
}

/// `qu`, left out for requests.
fn unit<'v>(standing: &'v Standing<'_>) -> Option<&'v StringRef> {
    let name = match (standing.window, standing.cost_unit) {
        (None, _) => "concurrent-requests",
        (Some(_), CostUnit::Requests) => return None,
        (Some(_), CostUnit::Bytes) => "content-bytes",
        (Some(_), CostUnit::Named(name)) => name,
    };
    StringRef::from_str(name).ok()
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
