//! The operators' side, on loopback unless told otherwise. What concerns everybody (`/healthcheck`,
//! `/livez`, `/readyz`) is on the HTTP port as well.
//!
//! | path | method | what |
//! |---|---|---|
//! | `/` | GET | this list |
//! | `/metrics` | GET | Prometheus text, or `OpenMetrics` if `Accept` asks for it |
//! | `/rules` | GET | the rules in place, and how loading them went |
//! | `/counters` | GET, POST, DELETE | what is used of the limits of a descriptor; resets it |
//! | `/explain` | GET | why a request would be answered as it would |
//! | `/top` | GET | the heaviest and the most refused callers of each rule |
//! | `/reload` | POST | loads the rules now; 200, or 422 with what was refused |
//! | `/log-level` | GET, PUT | the level, or another one as the body |
//! | `/log-refusals` | GET, PUT | how many refusals are logged: `off`, `1/N` or `N/s` |
//! | `/healthcheck` | any | 200 `OK`, or 500 without a body (as the reference) |
//! | `/livez` | any | 200: a process that answers lives |
//! | `/readyz` | any | 200, or 503 with what is missing |

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use http::{
    HeaderMap, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::{health::Health, reload::Reloads, stats::Stats};
use crate::telemetry::{
    logging::{Level, LevelControl},
    openmetrics,
    refusals::{LogRefusals, RefusalLog},
};

/// What the admin surface shows of the parts below the server.
pub trait Inside: Send + Sync + 'static {
    /// The rules in place, for people and scripts.
    fn rules(&self) -> Value;

    /// All metrics of the parts below, in Prometheus' text format.
    fn metrics(&self) -> String;
}

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Admin {
    pub(super) inside: Arc<dyn Inside>,
    pub(super) stats: Arc<Stats>,
    pub(super) reloads: Reloads,
    pub(super) log_level: LevelControl,
    pub(super) log_refusals: Arc<RefusalLog>,
}

impl Admin {
    /// Everything in the table but health.
    pub(super) fn router(self) -> Router {
        Router::new()
            .route("/", get(index))
            .route("/metrics", get(metrics))
            .route("/rules", get(rules))
            .route("/reload", post(reload))
            .route("/log-level", get(log_level).put(set_log_level))
            .route("/log-refusals", get(log_refusals).put(set_log_refusals))
            .with_state(self)
    }

    /// Only the metrics, at `path`, for a listener of their own.
    pub(super) fn metrics_router(self, path: &str) -> Router {
        Router::new().route(path, get(metrics)).with_state(self)
    }
}

/// The three health endpoints.
pub(super) fn health_router(health: Health, reloads: Reloads) -> Router {
    Router::new()
        .route("/healthcheck", any(healthcheck))
        .route("/livez", any(async || "ok\n"))
        .route("/readyz", any(readyz))
        .with_state((health, reloads))
}

async fn healthcheck(State((health, _)): State<(Health, Reloads)>) -> Response {
    if health.ready() {
        "OK".into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

async fn readyz(State((health, reloads)): State<(Health, Reloads)>) -> Response {
    let missing = health.missing();
    let mut text = String::new();
    if missing.is_empty() {
        text.push_str("ok\n");
    }
    // Writing to a string cannot fail.
    for what in &missing {
        let _ = writeln!(text, "not ready: {what}");
    }
    // The old rules still hold, so this is no reason to send requests elsewhere.
    for problem in reloads.so_far().problems {
        let _ = writeln!(text, "rules refused at the last load: {problem}");
    }
    let status = if missing.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, text).into_response()
}

async fn index() -> &'static str {
    "\
GET  /metrics      Prometheus text
GET  /rules        the rules in place, and how loading them went
GET  /counters     what is used, ?domain=D&descriptor=k=v,k2=v2&cost=N; POST or DELETE resets
GET  /explain      why a request would pass or not, ?domain=D&descriptor=k=v,k2=v2&cost=N
GET  /top          the heaviest and the most refused callers, ?domain=D&rule=PATH&n=N&format=text
POST /reload       load the rules now
GET  /log-level    the level; PUT another one as the body
GET  /log-refusals how many refusals are logged; PUT off, 1/N or N/s as the body
GET  /healthcheck  200 OK or 500
GET  /livez        200
GET  /readyz       200, or 503 with what is missing
"
}

async fn metrics(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let mut text = admin.inside.metrics();
    admin.stats.render(&mut text);
    admin.reloads.so_far().render(&mut text);
    let mut asked = headers.get_all(ACCEPT).iter();
    if asked.any(|accept| accept.to_str().is_ok_and(openmetrics::is_accepted)) {
        let kind = [(CONTENT_TYPE, openmetrics::CONTENT_TYPE)];
        return (kind, openmetrics::of_text(&text)).into_response();
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn rules(State(admin): State<Admin>) -> Json<Value> {
    Json(json!({
        "loads": admin.reloads.so_far(),
        "rules": admin.inside.rules(),
    }))
}

async fn reload(State(admin): State<Admin>) -> Response {
    match admin.reloads.now().await {
        None => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response(),
        Some(loads) if loads.problems.is_empty() => Json(loads).into_response(),
        Some(loads) => (StatusCode::UNPROCESSABLE_ENTITY, Json(loads)).into_response(),
    }
}

async fn log_level(State(admin): State<Admin>) -> String {
    format!("{}\n", admin.log_level.get())
}

async fn set_log_level(State(admin): State<Admin>, body: String) -> Response {
    match body.trim().parse::<Level>() {
        Ok(level) => {
            admin.log_level.set(level);
            format!("{level}\n").into_response()
        }
        Err(want) => (StatusCode::BAD_REQUEST, format!("{want}\n")).into_response(),
    }
}

async fn log_refusals(State(admin): State<Admin>) -> String {
    format!("{}\n", admin.log_refusals.get())
}

async fn set_log_refusals(State(admin): State<Admin>, body: String) -> Response {
    match body.trim().parse::<LogRefusals>() {
        Ok(wanted) => {
            admin.log_refusals.set(wanted);
            format!("{wanted}\n").into_response()
        }
        Err(want) => (StatusCode::BAD_REQUEST, format!("{want}\n")).into_response(),
    }
}
