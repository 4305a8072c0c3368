//! The services that answer out of an engine.

use std::{sync::Arc, time::Duration};

use axum::Router;
use serde_json::Value;
use tonic::service::Routes;

use crate::{
    api::{
        bounds::Bounds, counters, envoy_rls::RateLimit, explain, limiter::Limiter,
        privileges::Privileges, shown, top,
    },
    cli::settings::Settings,
    engine::Engine,
    proto::porteiro::v1::limiter_service_server::LimiterServiceServer,
    server::{Inside, OnStop, xds::Feed},
    telemetry::{lines::Lines, page, spans::export},
};

/// What a stream needs to end in peace.
const PARTING: Duration = Duration::from_millis(500);

/// Envoy's service.
pub(super) fn rate_limit(
    engine: &Arc<Engine>,
    settings: &Settings,
    privileges: &Arc<Privileges>,
) -> Arc<RateLimit> {
    let (bounds, answers) = (settings.server.bounds, settings.answers.clone());
    let service = RateLimit::new(Arc::clone(engine), bounds, answers);
    Arc::new(service.with_privileges(Arc::clone(privileges)))
}

/// Ours.
pub(super) fn limiter(
    engine: &Arc<Engine>,
    settings: &Settings,
    privileges: &Arc<Privileges>,
) -> Routes {
    let bounds = settings.server.bounds;
    let limiter = Limiter::new(Arc::clone(engine), bounds)
        .with_answers(settings.answers.clone())
        .with_privileges(Arc::clone(privileges));
    let server = LimiterServiceServer::new(limiter);
    Routes::new(server.max_decoding_message_size(bounds.max_message))
}

/// What the admin port answers beside what every server has.
pub(super) fn admin(engine: &Arc<Engine>, bounds: Bounds) -> Router {
    counters::router(Arc::clone(engine), bounds)
        .merge(explain::router(Arc::clone(engine), bounds))
        .merge(top::router(Arc::clone(engine)))
}

/// Sessions move, and are ended in peace a little before whatever is left is cut.
pub(super) fn tell_sessions(engine: Arc<Engine>) -> OnStop {
    Box::new(move |left| {
        let left = left.saturating_sub(PARTING.min(left / 10));
        let now = engine.clock().now();
        engine.leases().drain(now.steady + left.into(), now);
    })
}

/// What the admin endpoints show.
pub(super) struct EngineInside {
    pub(super) engine: Arc<Engine>,
    /// Of the control plane, when rules come from one.
    pub(super) feed: Option<Feed>,
    /// Of the log.
    pub(super) lines: Lines,
    /// When calls have spans.
    pub(super) spans: Option<Arc<export::Counts>>,
}

impl Inside for EngineInside {
    fn rules(&self) -> Value {
        shown::rules(self.engine.installed().rules())
    }

    fn metrics(&self) -> String {
        let mut page = page::render(&self.engine.metrics());
        if let Some(feed) = &self.feed {
            feed.render(&mut page);
        }
        if let Some(spans) = &self.spans {
            spans.render(&mut page);
        }
        self.lines.render(&mut page);
        page
    }
}
