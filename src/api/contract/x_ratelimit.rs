//! `X-RateLimit-*`: the family that most public APIs send.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::{
    api::contract::{Contract, decimal_seconds, push},
    engine::standing::Standing,
    model::time::NANOS_PER_SECOND,
    proto::envoy::config::core::v3::HeaderValue,
    rules::answer::{Scope, XRateLimit},
};

/// Adds limit, remaining and reset (Unix seconds, rounded up), and what else is chosen.
pub(super) fn add(contract: &Contract<'_>, options: XRateLimit, headers: &mut Vec<HeaderValue>) {
    let binding = &contract.binding().standing;
    let reset_at = contract.now + binding.reset;
    let reset_at = reset_at.as_nanos().div_ceil(NANOS_PER_SECOND);
    push(headers, "X-RateLimit-Limit", &binding.capacity.to_string());
    push(
        headers,
        "X-RateLimit-Remaining",
        &binding.remaining.to_string(),
    );
    push(headers, "X-RateLimit-Reset", &reset_at.to_string());
    if options.reset_after {
        let reset_after = decimal_seconds(binding.reset);
        push(headers, "X-RateLimit-Reset-After", &reset_after);
    }
    if options.bucket {
        let bucket = bucket(&contract.domain.name, binding);
        push(headers, "X-RateLimit-Bucket", &bucket);
    }
    if contract.retry.is_none() {
        return;
    }
    if options.scope {
        push(headers, "X-RateLimit-Scope", binding.scope().name());
    }
    if options.global && binding.scope() == Scope::Global {
        push(headers, "X-RateLimit-Global", "true");
    }
}

/// 16 hex digits that name the limit, the same for every caller, process and day.
fn bucket(domain: &str, standing: &Standing<'_>) -> String {
    let mut hasher = SipHasher13::new();
    let path = standing.rule.map_or(domain, |rule| rule.path.as_str());
    hasher.write(path.as_bytes());
    hasher.write_u64(standing.discriminator);
    format!("{:016x}", hasher.finish())
}
