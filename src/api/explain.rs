//! `GET /explain` of the admin surface and `porteiro explain`: [`limiter`]'s Explain for
//! people.
//!
//! Parameters of the query: `domain`, one or more `descriptor`, `cost`, as for
//! [`counters`](super::counters). The answer is that of `GET /counters` with more in it: `revision`,
//! `domain_known`, `stacking`, and for each descriptor `levels`, `end`, `file`, `line`, and in each
//! of its limits `charge`.

mod text;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Query, State},
    routing::get,
};
use serde_json::{Map, Value, json};
use tonic::Status;

use super::counters::{Asked, Limiter, Parameters, Refused, peeked};
use crate::{
    api::{bounds::Bounds, limiter},
    engine::Engine,
    proto::{
        envoy::extensions::common::ratelimit::v3::RateLimitDescriptor,
        porteiro::v1::{ExplainRequest, ExplainResponse, ExplainedDescriptor},
    },
};

/// The route.
pub fn router(engine: Arc<Engine>, bounds: Bounds) -> Router {
    Router::new()
        .route("/explain", get(explain))
        .with_state((engine, bounds))
}

async fn explain(
    State((engine, bounds)): Limiter,
    Query(parameters): Parameters,
) -> Result<Json<Value>, Refused> {
    let asked = Asked::read(&parameters, &["cost"])?;
    let request = ExplainRequest {
        domain: asked.domain,
        descriptors: asked.descriptors,
        hits_addend: 0,
    };
    let response = limiter::explain::answer(&engine, bounds, &request).await?;
    Ok(Json(shown(&response)))
}

/// The explanation of a request as text of several lines.
///
/// # Errors
/// `INVALID_ARGUMENT`, `UNAVAILABLE`.
pub async fn as_text(
    engine: &Engine,
    domain: String,
    descriptors: Vec<RateLimitDescriptor>,
) -> Result<String, Status> {
    let request = ExplainRequest {
        domain,
        descriptors,
        hits_addend: 0,
    };
    let response = limiter::explain::answer(engine, Bounds::default(), &request).await?;
    Ok(text::of(&request, &response))
}

fn shown(response: &ExplainResponse) -> Value {
    let before = response.before.as_ref().map(peeked);
    let Some(Value::Object(mut shown)) = before else {
        return Value::Null;
    };
    shown.insert("revision".into(), response.revision.as_str().into());
    shown.insert("domain_known".into(), response.domain_known.into());
    shown.insert("stacking".into(), response.stacking.as_str().into());
    let descriptors = shown.get_mut("descriptors").and_then(Value::as_array_mut);
    for (place, descriptor) in descriptors.into_iter().flatten().zip(&response.descriptors) {
        if let Value::Object(place) = place {
            add(place, descriptor);
        }
    }
    shown.into()
}

/// Adds what led to the limits, and what becomes of them.
fn add(shown: &mut Map<String, Value>, descriptor: &ExplainedDescriptor) {
    let levels = descriptor.levels.iter().map(|level| {
        let tried = level.tried.iter().map(|tried| {
            json!({
                "key": tried.key, "value": tried.value, "chosen": tried.chosen, "why": tried.why,
            })
        });
        json!({
            "key": level.key, "value": level.value, "left_out": level.left_out,
            "tried": tried.collect::<Vec<_>>(),
        })
    });
    shown.insert("levels".into(), levels.collect());
    shown.insert("end".into(), descriptor.end.as_str().into());
    if !descriptor.rule.is_empty() {
        shown.insert("rule".into(), descriptor.rule.as_str().into());
        shown.insert("file".into(), descriptor.file.as_str().into());
        shown.insert("line".into(), descriptor.line.into());
    }
    let limits = shown.get_mut("limits").and_then(Value::as_array_mut);
    for (limit, charge) in limits.into_iter().flatten().zip(&descriptor.charges) {
        limit["charge"] = json!({
            "cost": charge.cost, "charged": charge.charged,
            "used_after": charge.used_after, "remaining_after": charge.remaining_after,
        });
    }
}
