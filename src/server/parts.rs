//! What a server is put together from.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use tonic::service::Routes;

use super::{
    admin::Inside,
    connection::Transport,
    health::{Health, Latch},
    http::HttpLimits,
    listen::Listener,
    reload::{Loader, Reloads},
    stats::Stats,
    tls::{TlsError, TlsOptions},
};
use crate::{
    api::bounds::Bounds,
    model::{secret::Secret, time::Clock},
    store::connections::Connections,
    store::state::StateError,
    telemetry::{logging::LevelControl, refusals::RefusalLog, spans::Spans},
};

/// What is served.
pub struct App<R> {
    /// Envoy's rate limit service; also behind `/json`.
    pub rate_limit: Arc<R>,
    /// More gRPC services.
    pub services: Routes,
    /// More admin endpoints.
    pub admin: Router,
    /// What the admin endpoints show.
    pub inside: Arc<dyn Inside>,
    /// Connections, counted per worker: it decides how many workers there are.
    pub stats: Arc<Stats>,
    /// Ready or not.
    pub health: Health,
    /// Dropped when everything serves.
    pub starting: Latch,
    /// Who is connected to the gRPC port, for those who want to know; none: nobody does.
    pub connections: Option<Arc<Connections>>,
    /// Loads the rules.
    pub loader: Loader,
    /// The handle of `loader`.
    pub reloads: Reloads,
    /// Level of the log lines.
    pub log_level: LevelControl,
    /// Which refusals have log lines.
    pub log_refusals: Arc<RefusalLog>,
    /// Called once, when the server begins to stop: streams have this long until they are cut.
    pub on_stop: OnStop,
    /// Makes spans of calls, if somebody wants them.
    pub spans: Option<Arc<Spans>>,
    /// Where time comes from.
    pub clock: Clock,
}

/// See [`App::on_stop`].
pub type OnStop = Box<dyn FnOnce(Duration) + Send>;

impl<R> App<R> {
    /// The same with another rate limit service.
    pub fn with_rate_limit<N>(self, rate_limit: Arc<N>) -> App<N> {
        App {
            rate_limit,
            services: self.services,
            admin: self.admin,
            inside: self.inside,
            stats: self.stats,
            health: self.health,
            starting: self.starting,
            connections: self.connections,
            loader: self.loader,
            reloads: self.reloads,
            log_level: self.log_level,
            log_refusals: self.log_refusals,
            on_stop: self.on_stop,
            spans: self.spans,
            clock: self.clock,
        }
    }
}

/// How it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// gRPC connections.
    pub transport: Transport,
    /// HTTP connections.
    pub http: HttpLimits,
    /// Certificates; none: every listener speaks plain text.
    pub tls: Option<TlsOptions>,
    /// What the admin listener asks for, as `authorization: Bearer …`, except for health; none:
    /// nothing.
    pub admin_token: Option<Secret>,
    /// Sizes of requests.
    pub bounds: Bounds,
    /// How long to go on serving while not ready, so that load balancers notice before doors
    /// close. Default 0: whoever stops us has seen to it.
    pub drain_delay: Duration,
    /// How long connections may take to finish after that. Default 30 s.
    pub drain_deadline: Duration,
    /// Path of the metrics on their own listener.
    pub metrics_path: String,
    /// Start even when the first load of the rules refused something.
    pub start_without_rules: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: Transport::default(),
            http: HttpLimits::default(),
            tls: None,
            admin_token: None,
            bounds: Bounds::default(),
            drain_delay: Duration::ZERO,
            drain_deadline: Duration::from_secs(30),
            metrics_path: "/metrics".to_owned(),
            start_without_rules: false,
        }
    }
}

/// Where it is served.
#[derive(Debug)]
pub struct Listeners {
    /// gRPC.
    pub grpc: Listener,
    /// `/json` and health.
    pub http: Listener,
    /// Admin.
    pub admin: Listener,
    /// Metrics once more, for scrapers that may not see the rest.
    pub metrics: Option<Listener>,
}

/// Why a server ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The first load refused something; one line each.
    #[error("the rules were refused:\n{}", .0.join("\n"))]
    Rules(Vec<String>),
    /// A certificate, its key, or the roots of clients.
    #[error("certificates refused: {0}")]
    Tls(#[from] TlsError),
    /// What was counted before cannot be read, or what will be cannot be written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The machine said no.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// The descriptors that the build made cannot be read.
    #[error("bug: reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// A worker ended, which only a bug can do.
    #[error("bug: a worker ended early")]
    WorkerEnded,
}
