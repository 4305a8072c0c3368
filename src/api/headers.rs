//! Response headers. The reference's three, all of one descriptor.

use crate::{
    engine::verdict::{Code, Status, Verdict},
    proto::envoy::config::core::v3::HeaderValue,
    store::Role,
};

/// Names of the reference's headers (`LIMIT_LIMIT_HEADER` and so on).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// The limit's requests per unit.
    pub limit: String,
    /// What is left.
    pub remaining: String,
    /// Seconds to the window's end.
    pub reset: String,
}

impl Default for HeaderNames {
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".to_owned(),
            remaining: "RateLimit-Remaining".to_owned(),
            reset: "RateLimit-Reset".to_owned(),
        }
    }
}

/// The reference's headers; none when no descriptor had a limit.
pub fn reference_headers(names: &HeaderNames, verdict: &Verdict<'_>) -> Vec<HeaderValue> {
    let Some(told) = described(verdict).and_then(|status| status.told()) else {
        return Vec::new();
    };
    let header = |name: &str, value: u64| HeaderValue {
        key: name.to_owned(),
        value: value.to_string(),
        raw_value: Vec::new(),
    };
    vec![
        header(&names.limit, u64::from(told.shown.requests_per_unit)),
        header(&names.remaining, told.remaining.min(u64::from(u32::MAX))),
        header(&names.reset, told.reset.as_secs_up()),
    ]
}

/// The descriptor that headers describe: the last one that is over and not quota; else the first
/// of those with the least left.
fn described<'v, 'r>(verdict: &'v Verdict<'r>) -> Option<Status<'v, 'r>> {
    let refusing =
        |status: &Status<'_, '_>| status.code == Code::OverLimit && status.role() == Role::Enforced;
    let left = |status: &Status<'_, '_>| status.bound().map(|outcome| outcome.remaining);
    let limited = || verdict.statuses().filter(|status| status.binding.is_some());
    limited()
        .filter(refusing)
        .last()
        .or_else(|| limited().min_by_key(left))
}
