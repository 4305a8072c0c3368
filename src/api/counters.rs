//! `/counters` of the admin surface: [`limiter`]'s Peek and Reset for people with `curl`.
//!
//! | method | what |
//! |---|---|
//! | GET | looks; changes nothing |
//! | POST, DELETE | resets; says how many counters there were |
//!
//! Parameters of the query: `domain`, one or more `descriptor` (`tenant=acme,user=ann`, see
//! [`entries`](super::text::entries)), `cost` (GET; 1 if absent), `leases` (GET; lists
//! so many of the oldest leases of work in flight, and the holders that leak most), `revoke=true` (resets; leases end
//! as well). The answers are the messages of `porteiro.v1` as JSON with plain numbers: durations
//! are seconds, and what is absent there is absent here.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Query, State},
    response::{IntoResponse, Response},
    routing::get,
};
use http::StatusCode;
use serde_json::{Map, Value, json};
use tonic::{Code, Status};

use crate::{
    api::{
        bounds::Bounds,
        limiter,
        text::{self, NoEntry},
    },
    engine::Engine,
    proto::{
        envoy::extensions::common::ratelimit::v3::{
            RateLimitDescriptor, rate_limit_descriptor::Entry,
        },
        porteiro::v1::{
            PeekRequest, PeekResponse, PeekedDescriptor, PeekedLimit, Reason, ResetRequest,
            ResetResponse,
            peek_response::LeakingHolder,
            peeked_limit::{self, InFlight},
        },
    },
};

/// The route.
pub fn router(engine: Arc<Engine>, bounds: Bounds) -> Router {
    Router::new()
        .route("/counters", get(peek).post(reset).delete(reset))
        .with_state((engine, bounds))
}

pub(super) type Limiter = State<(Arc<Engine>, Bounds)>;
pub(super) type Parameters = Query<Vec<(String, String)>>;

async fn peek(
    State((engine, bounds)): Limiter,
    Query(parameters): Parameters,
) -> Result<Json<Value>, Refused> {
    let asked = Asked::read(&parameters, &["cost", "leases"])?;
    let request = PeekRequest {
        domain: asked.domain,
        descriptors: asked.descriptors,
        hits_addend: 0,
        leases: asked.leases,
    };
    let response = limiter::peek::answer(&engine, bounds, &request).await?;
    Ok(Json(peeked(&response)))
}

async fn reset(
    State((engine, bounds)): Limiter,
    Query(parameters): Parameters,
) -> Result<Json<Value>, Refused> {
    let asked = Asked::read(&parameters, &["revoke"])?;
    let request = ResetRequest {
        domain: asked.domain,
        descriptors: asked.descriptors,
        revoke_leases: asked.revoke,
    };
    let ResetResponse {
        counters,
        in_flight,
    } = limiter::reset::reset(&engine, bounds, &request).await?;
    Ok(Json(json!({"counters": counters, "in_flight": in_flight})))
}

/// The parameters of a query.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) domain: String,
    pub(super) descriptors: Vec<RateLimitDescriptor>,
    leases: u32,
    revoke: bool,
}

impl Asked {
    /// `more` names what there may be besides `domain` and `descriptor`.
    pub(super) fn read(parameters: &[(String, String)], more: &[&str]) -> Result<Self, Refused> {
        let mut asked = Self::default();
        let mut cost = None;
        for (name, value) in parameters {
            match name.as_str() {
                "domain" => asked.domain.clone_from(value),
                "descriptor" => asked.descriptors.push(descriptor(value)?),
                other if !more.contains(&other) => {
                    return Err(Refused::bad(format!(
                        "`{other}` is no parameter here: domain, descriptor, {}",
                        more.join(", ")
                    )));
                }
                "cost" => {
                    let number = value.parse().map_err(|_| {
                        Refused::bad(format!("cost is `{value}`, which is no whole number"))
                    })?;
                    cost = Some(number);
                }
                "leases" => {
                    asked.leases = value.parse().map_err(|_| {
                        Refused::bad(format!("leases is `{value}`, which is no whole number"))
                    })?;
                }
                // The last of them.
                _ => asked.revoke = value == "true",
            }
        }
        for descriptor in &mut asked.descriptors {
            descriptor.hits_addend = cost;
        }
        Ok(asked)
    }
}

/// Reads `tenant=acme,user=ann`.
///
/// # Errors
/// As [`text::entries`].
pub fn descriptor(text: &str) -> Result<RateLimitDescriptor, NoEntry> {
    let entries = text::entries(text)?;
    let entries = entries.into_iter();
    Ok(RateLimitDescriptor {
        entries: entries.map(|(key, value)| Entry { key, value }).collect(),
        ..RateLimitDescriptor::default()
    })
}

/// Everything that Peek shows.
pub(super) fn peeked(response: &PeekResponse) -> Value {
    let descriptors: Vec<Value> = response.descriptors.iter().map(of_descriptor).collect();
    let mut shown = Map::new();
    shown.insert("would_pass".into(), response.would_pass.into());
    add_seconds(&mut shown, "retry_after", response.retry_after);
    add_reason(&mut shown, response.reason());
    if let Some(place) = response.binding {
        let place = json!({"descriptor": place.descriptor, "limit": place.limit});
        shown.insert("binding".into(), place);
    }
    shown.insert("descriptors".into(), descriptors.into());
    if !response.leaking_holders.is_empty() {
        let leaking = response.leaking_holders.iter().map(|leaking| {
            let LeakingHolder {
                holder,
                expired,
                granted,
                live,
            } = leaking;
            json!({"holder": holder, "expired": expired, "granted": granted, "live": live})
        });
        shown.insert("leaking_holders".into(), leaking.collect());
    }
    shown.into()
}

fn of_descriptor(descriptor: &PeekedDescriptor) -> Value {
    let limits: Vec<Value> = descriptor.limits.iter().map(of_limit).collect();
    let mut shown = Map::new();
    shown.insert("rule".into(), descriptor.rule.as_str().into());
    shown.insert("would_pass".into(), descriptor.would_pass.into());
    for (name, on) in [
        ("unlimited", descriptor.unlimited),
        ("shadow", descriptor.shadow),
        ("quota", descriptor.quota),
    ] {
        if on {
            shown.insert(name.into(), true.into());
        }
    }
    shown.insert("limits".into(), limits.into());
    shown.into()
}

fn of_limit(limit: &PeekedLimit) -> Value {
    let mut shown = Map::new();
    if !limit.name.is_empty() {
        shown.insert("name".into(), limit.name.as_str().into());
    }
    shown.insert("algorithm".into(), limit.algorithm.as_str().into());
    shown.insert("limit".into(), limit.limit.into());
    add_seconds(&mut shown, "window", limit.window);
    shown.insert("used".into(), limit.used.into());
    shown.insert("remaining".into(), limit.remaining.into());
    add_seconds(&mut shown, "reset", limit.reset);
    shown.insert("would_pass".into(), limit.would_pass.into());
    add_seconds(&mut shown, "retry_after", limit.retry_after);
    add_reason(&mut shown, limit.reason());
    add_seconds(&mut shown, "more_after", limit.more_after);
    if let Some(estimates) = &limit.in_flight {
        shown.insert("in_flight".into(), of_in_flight(estimates));
    }
    if !limit.leases.is_empty() {
        let leases: Vec<Value> = limit.leases.iter().map(of_lease).collect();
        shown.insert("leases".into(), leases.into());
    }
    shown.into()
}

fn of_lease(lease: &peeked_limit::Lease) -> Value {
    let mut shown = Map::new();
    let holder = lease.holder.clone().unwrap_or_default();
    for (name, text) in [("holder", holder.id), ("instance", holder.instance)] {
        if !text.is_empty() {
            shown.insert(name.into(), text.into());
        }
    }
    shown.insert("permits".into(), lease.permits.into());
    add_seconds(&mut shown, "age", lease.age);
    add_seconds(&mut shown, "expires_in", lease.expires_in);
    if lease.in_session {
        shown.insert("in_session".into(), true.into());
    }
    shown.into()
}

fn of_in_flight(estimates: &InFlight) -> Value {
    let mut shown = Map::new();
    shown.insert("leases".into(), estimates.leases.into());
    shown.insert("waiters".into(), estimates.waiters.into());
    add_seconds(&mut shown, "mean_hold", estimates.mean_hold);
    shown.insert("arrival_rate".into(), estimates.arrival_rate.into());
    shown.insert("throughput".into(), estimates.throughput.into());
    shown.insert("mean_in_flight".into(), estimates.mean_in_flight.into());
    shown.insert("reserved".into(), estimates.reserved.into());
    shown.into()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "seconds for people; nanoseconds are in the message"
)]
fn add_seconds(shown: &mut Map<String, Value>, name: &str, span: Option<prost_types::Duration>) {
    if let Some(span) = span {
        let seconds = span.seconds as f64 + f64::from(span.nanos) / 1e9;
        shown.insert(name.into(), seconds.into());
    }
}

/// In the words of headers and metadata.
fn add_reason(shown: &mut Map<String, Value>, reason: Reason) {
    if reason != Reason::Unspecified {
        let name = reason.as_str_name().trim_start_matches("REASON_");
        shown.insert("reason".into(), name.to_ascii_lowercase().into());
    }
}

/// An answer that is none.
pub(super) struct Refused {
    status: StatusCode,
    text: String,
}

impl Refused {
    pub(super) fn bad(text: String) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            text,
        }
    }
}

impl From<NoEntry> for Refused {
    fn from(error: NoEntry) -> Self {
        Self::bad(error.to_string())
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self {
            status: match status.code() {
                Code::InvalidArgument => StatusCode::BAD_REQUEST,
                Code::Unavailable | Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            text: status.message().to_owned(),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, format!("{}\n", self.text)).into_response()
    }
}
