//! The contract with clients, as a domain states it (`answer:`).
//!
//! Names and texts are checked when rules load, so that nothing with a control character can leave
//! this program: Envoy forwards what it gets as it is.

use std::{collections::BTreeMap, sync::Arc};

use crate::model::request::Request;

/// What answers of a domain carry besides the protocol's own fields. The default is nothing, which
/// is what the reference sends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Header families, on passes and refusals alike unless a family says otherwise.
    pub headers: Headers,
    /// Which requests that pass get them.
    pub pass_headers: PassHeaders,
    /// Body of a refusal.
    pub body: Body,
    /// Text of a refusal, by language.
    pub messages: Messages,
    /// Hints are spread over this share of themselves, so that callers refused together do not
    /// come back together. In thousandths; 0 is off. A hint only ever grows.
    pub spread_permille: u32,
    /// `dynamic_metadata` in our shape: domain, rule, limit, reason, remaining, `retry_after`.
    pub metadata: bool,
}

impl Answer {
    /// Nothing was promised.
    pub fn is_nothing(&self) -> bool {
        self.headers == Headers::default() && self.body == Body::None && !self.metadata
    }
}

/// Which requests that pass get the headers (`answer.pass_headers`). Refusals always have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PassHeaders {
    /// All of them.
    #[default]
    Always,
    /// None.
    Never,
    /// Those that have one of these entries, key and value, in any descriptor.
    With(Box<[(Box<str>, Box<str>)]>),
}

impl PassHeaders {
    /// Whether this request gets headers when it passes.
    pub fn has(&self, request: &Request<'_>) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::With(wanted) => request.all_entries().iter().any(|entry| {
                let is = |(key, value): &(Box<str>, Box<str>)| {
                    **key == *entry.key && **value == *entry.value
                };
                wanted.iter().any(is)
            }),
        }
    }
}

/// Which header families are sent (`answer.headers`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one per switch of the rule language"
)]
pub struct Headers {
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` exactly as the reference service.
    pub reference: bool,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` and more.
    pub x_ratelimit: Option<XRateLimit>,
    /// `RateLimit-Policy` and `RateLimit` of the IETF drafts.
    pub ietf: Option<Ietf>,
    /// `Retry-After` in whole seconds, rounded up, at least 1; on refusals only.
    pub retry_after: bool,
    /// `Retry-After-Ms`, on refusals only.
    pub retry_after_ms: bool,
    /// `X-RateLimit-Reason` and `X-RateLimit-Name`, on refusals only.
    pub reason: bool,
}

/// `x_ratelimit`: which of its headers besides limit, remaining and reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one per switch of the rule language"
)]
pub struct XRateLimit {
    /// `-Used`: what is used of the limit.
    pub used: bool,
    /// `-Resource`: the name of the limit.
    pub resource: bool,
    /// `-Reset-After`: seconds until nothing is used any more.
    pub reset_after: Option<Decimals>,
    /// `-Bucket`: 16 hex digits that name the rule, the same for every caller.
    pub bucket: bool,
    /// `-Scope`: whose limit it is; on refusals only.
    pub scope: bool,
    /// `-Global: true`, on refusals by a rule of global scope only.
    pub global: GlobalHeader,
}

/// How `X-RateLimit-Reset-After` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decimals {
    /// Milliseconds, rounded up: `12.500`.
    Millis,
    /// Without zeros at the end: milliseconds, rounded up, on passes, `12.5`; on refusals the exact
    /// time, `12.499999999`.
    Short,
}

/// What `X-RateLimit-Global` does on a refusal by a rule of global scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GlobalHeader {
    /// It is not sent.
    #[default]
    Off,
    /// It is sent besides the others.
    Beside,
    /// It is sent in the place of what describes one limit: limit, remaining, reset, bucket.
    Alone,
}

/// `ietf`: which draft, and whether partition keys are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ietf {
    /// The draft's shape.
    pub version: IetfVersion,
    /// Send `pk`: the first bytes of the counter key's hash.
    pub partition_key: bool,
}

/// Drafts of draft-ietf-httpapi-ratelimit-headers with different shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IetfVersion {
    /// Three fields `RateLimit-Limit` (with policies), `-Remaining`, `-Reset`.
    Draft03,
    /// `RateLimit: limit=…, remaining=…, reset=…` and `RateLimit-Policy: 100;w=60`.
    Draft07,
    /// `RateLimit-Policy: "name";q=…;w=…` and `RateLimit: "name";r=…;t=…`.
    #[default]
    Draft10,
}

/// Body of a refusal (`answer.body`).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Body {
    /// None.
    #[default]
    None,
    /// RFC 9457 with the draft's problem types and `violated-policies`.
    ProblemJson,
    /// JSON of one's own. A text that is exactly one placeholder (`"{retry_after}"`) becomes its
    /// typed value; placeholders inside longer texts are filled in as text.
    Json(serde_json::Value),
}

/// The placeholders of [`Body::Json`] and of messages, without their braces.
pub const PLACEHOLDERS: [&str; 9] = [
    "message",
    "retry_after",
    "retry_after_seconds",
    "limit",
    "remaining",
    "limit_name",
    "reason",
    "global",
    "scope",
];

/// Before the name of a field of the refusing rule's `metadata`, in a placeholder:
/// `{metadata.code}`. What the rule does not have is null.
pub const METADATA: &str = "metadata.";

/// Texts of a refusal (`answer.messages`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Key of the descriptor entry that tells the language, for example `accept_language`.
    pub by: Option<Box<str>>,
    /// Text when no language fits; none: an English one.
    pub default: Option<Arc<str>>,
    /// By language tag, lower case; `pt-br` falls back to `pt`.
    pub texts: BTreeMap<Box<str>, Arc<str>>,
}

/// Whose limit a rule states (`scope:` of a rule).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The caller's own.
    #[default]
    User,
    /// One of everything the caller does, across routes.
    Global,
    /// A resource that callers share; a refusal is not the caller's fault.
    Shared,
}

impl Scope {
    /// As rule files and headers write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Global => "global",
            Self::Shared => "shared",
        }
    }
}
