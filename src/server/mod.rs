//! The process: listeners, workers, readiness, reload, stop.
//!
//! [`run`] is the whole of it. gRPC connections are accepted here and handed to the worker with
//! the fewest; each worker is a thread with a runtime of its own, and a decision runs to completion
//! on the thread that read it. HTTP, admin, loading of rules and signals share the runtime that
//! [`run`] was called on.
//!
//! Stopping has phases: not ready, but still serving (for load balancers to notice); no new
//! connections, and the open ones are asked to leave (GOAWAY twice, so that calls on their way are
//! not lost); deadline; whatever is left is cut. [`Stopped`] says which way it went.

mod accept;
mod admin;
mod arrival;
mod batch;
mod carry;
mod codec;
mod connection;
mod grpc;
mod guard;
mod handshake;
mod health;
mod http;
mod listen;
pub mod noop;
mod parts;
mod preface;
mod prompt;
mod pulse;
mod reload;
mod stats;
mod stop;
mod tls;
mod turn;
mod watch;
mod worker;
pub mod xds;

use std::{mem, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    sync::mpsc,
    task,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    accept::{Acceptor, Door, Handover},
    admin::Admin,
    connection::Shared,
    grpc::Services,
    guard::Gate,
    handshake::Handshakes,
    listen::Accepting,
    stop::Stopping,
    tls::Tls,
};
pub use self::{
    admin::Inside,
    connection::Transport,
    health::{Health, Latch},
    http::HttpLimits,
    listen::{Address, AddressError, BindError, Listener},
    parts::{App, Listeners, OnStop, Options, ServerError},
    reload::{Load, Loaded, Loader, Loads, Reloads, Watch, loader},
    stats::Stats,
    stop::{StopSignals, Stopped},
    tls::{Doors, TlsError, TlsOptions},
};
use crate::{
    api::{json, wire::Asked},
    model::time::Clock,
    telemetry::logging::Throttle,
};

/// Serves until `stop` resolves and connections have ended; `hurry` cuts them short.
///
/// To be called on a runtime with I/O and time. The rules are loaded first; a refusal ends it
/// before anything is served.
///
/// # Errors
/// Everything that can go wrong at start, and [`ServerError::WorkerEnded`].
pub async fn run<R: Asked>(
    mut app: App<R>,
    options: Options,
    listeners: Listeners,
    stop: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) -> Result<Stopped, ServerError> {
    let tls = options
        .tls
        .clone()
        .map(Tls::load)
        .transpose()?
        .map(Arc::new);
    let speaks_tls = |door: fn(Doors) -> bool| tls.clone().filter(|tls| door(tls.doors()));
    first_load(&mut app, options.start_without_rules).await?;
    let stopping = Stopping::default();
    let http_at = listeners.http.address().to_string();
    let mut workers = start_workers(&mut app, &options, &http_at, &stopping)?;
    let handover = Handover {
        workers: mem::take(&mut workers.handoffs),
        stats: Arc::clone(&app.stats),
        max_connections: options.transport.max_connections,
        clock: app.clock.clone(),
        full: Throttle::default(),
    };
    let door = match speaks_tls(|doors| doors.grpc) {
        None => Door::Open(handover),
        Some(tls) => {
            let handshakes = Handshakes {
                tls,
                handover,
                timeout: options.transport.handshake_timeout,
                most: options.transport.max_handshakes,
                failed: Throttle::default(),
            };
            Door::Tls(handshake::spawn(handshakes, workers.life())?)
        }
    };
    workers.alive.close();
    let accepting = task::spawn(
        Acceptor {
            listener: Accepting::new(listeners.grpc)?,
            door,
            clock: app.clock.clone(),
        }
        .run(stopping.accept.clone()),
    );

    // HTTP, reload and clock end last: until then somebody asks whether we are ready.
    let rest = CancellationToken::new();
    let http = TaskTracker::new();
    let public = public_router(&app, &options);
    let token = options.admin_token.clone();
    let mut routers = vec![
        (listeners.http, public, speaks_tls(|doors| doors.http), None),
        (
            listeners.admin,
            admin_router(&app),
            speaks_tls(|doors| doors.admin),
            token,
        ),
    ];
    if let Some(metrics) = listeners.metrics {
        let router = admin(&app).metrics_router(&options.metrics_path);
        routers.push((metrics, router, speaks_tls(|doors| doors.metrics), None));
    }
    for (listener, router, tls, token) in routers {
        let door = http::Door {
            router,
            tls,
            limits: options.http.clone(),
            token,
        };
        http.spawn(http::serve(Accepting::new(listener)?, door, rest.clone()));
    }
    if let Some(tls) = &tls {
        task::spawn(tls::rotate(
            Arc::clone(tls),
            Arc::clone(&app.stats),
            rest.clone(),
        ));
    }
    task::spawn(app.loader.run(app.health.clone(), rest.clone()));
    task::spawn(follow(app.clock, rest.clone()));
    drop(app.starting);
    let on_stop = app.on_stop;

    tokio::select! {
        () = stop => {}
        () = workers.one_ended.cancelled() => return Err(ServerError::WorkerEnded),
    }

    let mut hurry = pin!(hurry);
    let mut deadline = options.drain_deadline;
    app.health.draining();
    on_stop(options.drain_delay.saturating_add(deadline));
    tokio::select! {
        () = sleep(options.drain_delay) => {}
        () = &mut hurry => deadline = Duration::ZERO,
    }
    stopping.accept.cancel();
    // The door is closed before anybody is asked to leave: who leaves comes back at once, and where
    // the next process listens on the same port, what knocks at a door that just closes is lost.
    let _ = timeout(LAST_WAIT, accepting).await;
    stopping.drain.cancel();
    tokio::select! {
        biased;
        () = workers.alive.wait() => {}
        () = sleep(deadline) => {}
        () = &mut hurry, if !deadline.is_zero() => {}
    }
    let left = app.stats.open().iter().sum();
    stopping.cut.cancel();
    rest.cancel();
    http.close();
    // What is not gone now is a thread that is stuck or a request that never ends.
    let gone = async {
        workers.alive.wait().await;
        http.wait().await;
    };
    let _ = timeout(LAST_WAIT, gone).await;
    Ok(if left == 0 {
        Stopped::Drained
    } else {
        Stopped::DeadlinePassed { left }
    })
}

async fn first_load<R>(app: &mut App<R>, start_without_rules: bool) -> Result<(), ServerError> {
    let loads = app.loader.first(&app.health).await;
    if loads.problems.is_empty() || start_without_rules {
        loads.log();
        Ok(())
    } else {
        Err(ServerError::Rules(loads.problems))
    }
}

/// How long the threads and the HTTP requests get after everything was cut.
const LAST_WAIT: Duration = Duration::from_secs(2);

struct Workers {
    handoffs: Vec<mpsc::Sender<arrival::Handed>>,
    /// Ends when all have ended.
    alive: TaskTracker,
    /// Cancelled when one has ended.
    one_ended: CancellationToken,
}

impl Workers {
    /// For one more thread that must not end early.
    fn life(&self) -> stop::Life {
        stop::Life {
            _alive: self.alive.token(),
            _ended: self.one_ended.clone().drop_guard(),
        }
    }
}

fn start_workers<R: Asked>(
    app: &mut App<R>,
    options: &Options,
    http_at: &str,
    stopping: &Stopping,
) -> Result<Workers, ServerError> {
    let services = Services::new(
        Arc::clone(&app.rate_limit),
        mem::take(&mut app.services),
        app.health.clone(),
        options.bounds,
        stopping.drain.clone(),
        prompt::Lateness {
            clock: app.clock.clone(),
            stats: Arc::clone(&app.stats),
        },
        app.spans.clone(),
    )?;
    let count = app.stats.open().len();
    let waiting = options.transport.max_calls.div_ceil(count);
    let wrong_door = Arc::new(Throttle::default());
    let mut workers = Workers {
        handoffs: Vec::new(),
        alive: TaskTracker::new(),
        one_ended: CancellationToken::new(),
    };
    for index in 0..count {
        let shared = Shared {
            service: services.clone(),
            transport: options.transport.clone(),
            // Children, so that workers do not meet at one lock.
            stopping: stopping.child(),
            stats: Arc::clone(&app.stats),
            connections: app.connections.clone(),
            clock: app.clock.clone(),
            wrong_door: Arc::clone(&wrong_door),
            http: http_at.into(),
            gate: Arc::new(Gate::new(waiting, Arc::clone(&app.stats), index)),
            speaks_tls: options.tls.as_ref().is_some_and(|tls| tls.doors.grpc),
        };
        let worker = worker::spawn(index, shared, workers.life())?;
        workers.handoffs.push(worker);
    }
    Ok(workers)
}

fn public_router<R: Asked>(app: &App<R>, options: &Options) -> Router {
    let (service, spans) = (Arc::clone(&app.rate_limit), app.spans.clone());
    json::router(service, options.http.max_body, spans).merge(admin::health_router(
        app.health.clone(),
        app.reloads.clone(),
    ))
}

fn admin_router<R>(app: &App<R>) -> Router {
    admin(app)
        .router()
        .merge(admin::health_router(
            app.health.clone(),
            app.reloads.clone(),
        ))
        .merge(app.admin.clone())
}

fn admin<R>(app: &App<R>) -> Admin {
    Admin {
        inside: Arc::clone(&app.inside),
        stats: Arc::clone(&app.stats),
        reloads: app.reloads.clone(),
        log_level: app.log_level.clone(),
        log_refusals: Arc::clone(&app.log_refusals),
    }
}

/// Keeps the wall line of the clock at the machine's date.
async fn follow(clock: Clock, stop: CancellationToken) {
    while timeout(FOLLOW_EVERY, stop.cancelled()).await.is_err() {
        clock.follow();
    }
}

const FOLLOW_EVERY: Duration = Duration::from_secs(1);
