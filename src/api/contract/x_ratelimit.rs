//! `X-RateLimit-*`: the family that most public APIs send.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::{
    api::contract::{Contract, Told, decimal_seconds, push},
    engine::standing::Standing,
    model::time::{NANOS_PER_SECOND, Span},
    proto::envoy::config::core::v3::HeaderValue,
    rules::answer::{Decimals, GlobalHeader, Scope, XRateLimit},
};

/// Adds limit, remaining and reset (Unix seconds, rounded up), and what else is chosen.
pub(super) fn add(contract: &Contract<'_>, options: XRateLimit, headers: &mut Vec<HeaderValue>) {
    let refused = contract.retry.is_some();
    let scope = contract.binding().standing.scope();
    let global = refused && scope == Scope::Global;
    let alone = global && options.global == GlobalHeader::Alone;
    if let Some(described) = contract.described().filter(|_| !alone) {
        describe(contract, described, options, headers);
    }
    if refused && options.scope {
        push(headers, "X-RateLimit-Scope", scope.name());
    }
    if global && options.global != GlobalHeader::Off {
        push(headers, "X-RateLimit-Global", "true");
    }
}

/// One limit.
fn describe(
    contract: &Contract<'_>,
    told: &Told<'_>,
    options: XRateLimit,
    headers: &mut Vec<HeaderValue>,
) {
    let limit = &told.standing;
    let reset_at = contract.now + limit.reset;
    let reset_at = reset_at.as_nanos().div_ceil(NANOS_PER_SECOND);
    push(headers, "X-RateLimit-Limit", &limit.capacity.to_string());
    push(
        headers,
        "X-RateLimit-Remaining",
        &limit.remaining.to_string(),
    );
    push(headers, "X-RateLimit-Reset", &reset_at.to_string());
    if options.used {
        let used = limit.capacity.saturating_sub(limit.remaining);
        push(headers, "X-RateLimit-Used", &used.to_string());
    }
    if options.resource {
        push(headers, "X-RateLimit-Resource", &told.name);
    }
    let reset_after = options.reset_after.map(|decimals| match decimals {
        Decimals::Millis => decimal_seconds(limit.reset),
        Decimals::Short if contract.retry.is_some() => exact_seconds(limit.reset),
        Decimals::Short => exact_seconds(Span::from_millis(limit.reset.as_millis_up())),
    });
    if let Some(reset_after) = reset_after {
        push(headers, "X-RateLimit-Reset-After", &reset_after);
    }
    if options.bucket {
        let bucket = bucket(&contract.domain.name, limit);
        push(headers, "X-RateLimit-Bucket", &bucket);
    }
}

/// Seconds with as many decimals as it takes.
fn exact_seconds(span: Span) -> String {
    let nanos = span.as_nanos();
    let text = format!(
        "{}.{:09}",
        nanos / NANOS_PER_SECOND,
        nanos % NANOS_PER_SECOND
    );
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// 16 hex digits that name the limit, the same for every caller, process and day.
fn bucket(domain: &str, standing: &Standing<'_>) -> String {
    let mut hasher = SipHasher13::new();
    let path = standing.rule.map_or(domain, |rule| rule.path.as_str());
    hasher.write(path.as_bytes());
    hasher.write_u64(standing.discriminator);
    format!("{:016x}", hasher.finish())
}
