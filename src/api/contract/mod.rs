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
    api::text::without_controls,
    engine::{
        standing::{Reason, Standing, spread},
        verdict::Verdict,
    },
    model::{
        request::Request,
        time::{NANOS_PER_SECOND, Span, Timestamp},
    },
    proto::envoy::config::core::v3::HeaderValue,
    rules::Domain,
};

/// Most limits in one answer.
const MOST_LIMITS: usize = 8;

/// Everything that a contract's parts are made of.
#[derive(Debug)]
pub struct Contract<'v> {
    domain: &'v Domain,
    now: Timestamp,
    /// The most restrictive first; never empty.
    limits: Vec<Told<'v>>,
    /// When the request would pass, spread as the domain asks; none when it passed.
    retry: Option<Retry>,
}

/// A limit under the name that clients see.
#[derive(Debug)]
struct Told<'v> {
    /// Different from that of every other limit of the answer.
    name: String,
    standing: Standing<'v>,
}

impl<'v> Contract<'v> {
    /// None when the request touched no enforced limit: then there is nothing to tell.
    pub fn new(verdict: &'v Verdict<'_>) -> Option<Self> {
        let domain = verdict.domain?;
        let standings = verdict.standings();
        let binding = standings.first()?;
        let permille = domain.answer.spread_permille;
        let spread_out = |retry| match retry {
            Retry::After(wait) => {
                Retry::After(spread(wait, permille, binding.key, verdict.now.wall))
            }
            Retry::Never => Retry::Never,
        };
        let retry = verdict.retry().map(spread_out);
        let names = names(&standings);
        let told = names.into_iter().zip(standings);
        let told = told.map(|(name, standing)| Told { name, standing });
        Some(Self {
            domain,
            now: verdict.now.wall,
            limits: told.take(MOST_LIMITS).collect(),
            retry,
        })
    }

    /// The limit that describes the request.
    fn binding(&self) -> &Told<'v> {
        // Never empty, see `new`.
        &self.limits[0]
    }

    /// The limit that headers describe: the binding one, or the first behind it that the rules
    /// do not keep back. None when all are kept back.
    fn described(&self) -> Option<&Told<'v>> {
        self.advertised().next()
    }

    /// Limits that headers may describe, the most restrictive first.
    fn advertised(&self) -> impl Iterator<Item = &Told<'v>> {
        let kept_back = |told: &&Told<'v>| told.standing.rule.is_some_and(|rule| rule.unadvertised);
        self.limits.iter().filter(move |told| !kept_back(told))
    }

    /// The headers of the families that the domain chose.
    pub fn headers(&self, request: &Request<'_>) -> Vec<HeaderValue> {
        let families = self.domain.answer.headers;
        let mut headers = Vec::new();
        if self.retry.is_none() && !self.domain.answer.pass_headers.has(request) {
            return headers;
        }
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
                let seconds = wait.as_secs_up().max(1);
                push(&mut headers, "Retry-After", &seconds.to_string());
            }
            if families.retry_after_ms {
                let millis = wait.as_millis_up().max(1);
                push(&mut headers, "Retry-After-Ms", &millis.to_string());
            }
        }
        if families.reason {
            let binding = self.binding();
            let reason = binding.standing.refused.unwrap_or(Reason::Rate);
            push(&mut headers, "X-RateLimit-Reason", reason.name());
            push(&mut headers, "X-RateLimit-Name", &binding.name);
        }
        push(&mut headers, "Cache-Control", "no-store");
        headers
    }

    /// The body of a refusal and its content type; none when the request passed or the domain
    /// sends no body.
    pub fn body(&self, request: &Request<'_>) -> Option<(&'static str, Vec<u8>)> {
        self.retry.and_then(|retry| body::of(self, request, retry))
    }
}

fn push(headers: &mut Vec<HeaderValue>, name: &str, value: &str) {
    headers.push(HeaderValue {
        key: name.to_owned(),
        value: without_controls(value).into_owned(),
        raw_value: Vec::new(),
    });
}

/// Names by standing. Two limits that would have one name are told apart by their order in the
/// request, so that the same request always gets the same names.
fn names(standings: &[Standing<'_>]) -> Vec<String> {
    let plain: Vec<String> = standings.iter().map(policy_name).collect();
    let unique = |(standing, name): (&Standing<'_>, &String)| {
        let namesakes = standings.iter().zip(&plain);
        let earlier = namesakes
            .filter(|(other, other_name)| *other_name == name && other.place < standing.place)
            .count();
        match earlier {
            0 => name.clone(),
            earlier => format!("{name}-{}", earlier + 1),
        }
    };
    standings.iter().zip(&plain).map(unique).collect()
}

/// The name of a limit in headers and bodies: its own, or `100-in-60s`. Visible ASCII only.
fn policy_name(standing: &Standing<'_>) -> String {
    match (standing.name, standing.window) {
        (Some(name), _) => visible(name),
        (None, Some(window)) => format!("{}-in-{}", standing.capacity, short(window)),
        (None, None) => format!("{}-at-once", standing.capacity),
    }
}

/// The text in visible ASCII and blanks, which is what a structured field can hold.
fn visible(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_graphic() || c == ' ';
    text.chars()
        .map(|c| if allowed(c) { c } else { '_' })
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
