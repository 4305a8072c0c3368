//! The contract with clients (`answer:` of a domain): what goes into headers, body and metadata
//! besides the protocol's own fields.
//!
//! Headers describe the *binding* limit: of those that refused the one that takes longest to
//! pass, else the one with the least left. The state of the quota is on every answer; what only a
//! refusal has is said at its place. Names and texts were checked when the rules were loaded, and
//! everything that comes from a request is escaped or left out: nothing with a control character
//! leaves this program.

mod body;
mod ietf;
mod metadata;
mod x_ratelimit;

pub use metadata::add as add_metadata;

use crate::{
    algorithm::Retry,
    engine::{
        standing::{Standing, spread},
        verdict::Verdict,
    },
    model::{
        request::Request,
        time::{NANOS_PER_SECOND, Span, Timestamp},
    },
    proto::envoy::config::core::v3::HeaderValue,
    rules::{Domain, answer::Body},
};

/// Everything that a contract's parts are made of.
#[derive(Debug)]
pub struct Contract<'v> {
    domain: &'v Domain,
    now: Timestamp,
    standings: &'v [Standing<'v>],
    binding: &'v Standing<'v>,
    /// When the request would pass, spread as the domain asks; none when it passed.
    retry: Option<Retry>,
}

impl<'v> Contract<'v> {
    /// None when the request touched no enforced limit: then there is nothing to tell.
    pub fn new(verdict: &'v Verdict<'_>, standings: &'v [Standing<'v>]) -> Option<Self> {
        let domain = verdict.domain?;
        let binding = Verdict::binding(standings)?;
        let permille = domain.answer.spread_permille;
        let spread_out = |retry| match retry {
            Retry::After(wait) => {
                Retry::After(spread(wait, permille, binding.key, verdict.now.wall))
            }
            Retry::Never => Retry::Never,
        };
        let retry = verdict.retry(standings).map(spread_out);
        Some(Self {
            domain,
            now: verdict.now.wall,
            standings,
            binding,
            retry,
        })
    }

    /// The headers of the families that the domain chose.
    pub fn headers(&self) -> Vec<HeaderValue> {
        let families = self.domain.answer.headers;
        let mut headers = Vec::new();
        if let Some(options) = families.x_ratelimit {
            x_ratelimit::add(self, options, &mut headers);
        }
        if let Some(options) = families.ietf {
            ietf::add(self, options, &mut headers);
        }
        let Some(retry) = self.retry else {
            return headers;
        };
        if let Retry::After(wait) = retry {
            if families.retry_after {
                push(
                    &mut headers,
                    "Retry-After",
                    wait.as_secs_up().max(1).to_string(),
                );
            }
            if families.retry_after_ms {
                push(
                    &mut headers,
                    "Retry-After-Ms",
                    wait.as_millis_up().max(1).to_string(),
                );
            }
        }
        if families.reason {
            let reason = self.binding.refused.map_or("rate", |reason| reason.name());
            push(&mut headers, "X-RateLimit-Reason", reason.to_owned());
            push(&mut headers, "X-RateLimit-Name", policy_name(self.binding));
        }
        if !headers.is_empty() || self.domain.answer.body != Body::None {
            push(&mut headers, "Cache-Control", "no-store".to_owned());
        }
        headers
    }

    /// The body of a refusal and its content type; none when the request passed or the domain
    /// sends no body.
    pub fn body(&self, request: &Request<'_>) -> Option<(&'static str, Vec<u8>)> {
        self.retry.and_then(|retry| body::of(self, request, retry))
    }
}

fn push(headers: &mut Vec<HeaderValue>, name: &str, value: String) {
    headers.push(HeaderValue {
        key: name.to_owned(),
        value,
        raw_value: Vec::new(),
    });
}

/// The name of a limit in headers and bodies: its own, or `100-in-60s`. Visible ASCII only.
fn policy_name(standing: &Standing<'_>) -> String {
    let Some(name) = standing.name else {
        return match standing.window {
            Some(window) => format!("{}-in-{}", standing.capacity, short(window)),
            None => format!("{}-at-once", standing.capacity),
        };
    };
    name.chars()
        .map(|c| {
            if c.is_ascii_graphic() || c == ' ' {
                c
            } else {
                '_'
            }
        })
        .collect()
}

fn short(span: Span) -> String {
    if span.as_nanos().is_multiple_of(NANOS_PER_SECOND) {
        format!("{}s", span.as_secs_up())
    } else {
        format!("{}ms", span.as_millis_up())
    }
}

/// Seconds with three decimals, rounded up.
fn decimal_seconds(span: Span) -> String {
    let millis = span.as_millis_up();
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}
