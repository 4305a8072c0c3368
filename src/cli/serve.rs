//! `porteiro serve`: rules, store, listeners, and then [`server::run`].

use std::{future::pending, io, process::ExitCode, sync::Arc, time::Duration};

use clap::{ArgMatches, Command};
use serde_json::Value;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::{
    EXIT_BUG, EXIT_CUT, EXIT_USAGE, complain, rule_loading,
    settings::{self, Settings},
    state::{self, Opened},
};
use crate::{
    api::{
        bounds::Bounds,
        counters,
        envoy_rls::{AnswerOptions, RateLimit},
        explain,
        limiter::Limiter,
        privileges::Privileges,
        shown, top,
    },
    engine::Engine,
    model::time::{Clock, Span},
    proto::porteiro::v1::limiter_service_server::LimiterServiceServer,
    server::{
        self, Address, App, BindError, Health, Inside, Listener, Listeners, OnStop, Reloads,
        ServerError, Stats, StopSignals, Stopped, loader,
        noop::Noop,
        xds::{self, Feed},
    },
    store::{
        Store,
        fallback::{Fallback, SharedStore},
        memory::MemoryStore,
        redis::RedisStore,
    },
    telemetry::{
        logging::{self, LevelControl},
        names, page,
        spans::export,
    },
};

/// The subcommand.
pub fn command() -> Command {
    settings::flags(
        Command::new("serve")
            .about("Answers requests until it is told to stop")
            .after_help(
                "A flag wins over its variable, and both over the reference's. SIGTERM and SIGINT \
                 stop, a second one at once; SIGHUP reads the rules again.\n\
                 Exit codes: 0 stopped in peace, 1 cannot start, 64 wrong settings or rules, \
                 70 a bug, 75 connections were cut.",
            ),
    )
}

/// Runs it.
pub fn run(flags: &ArgMatches) -> ExitCode {
    let settings = match Settings::read(flags, &settings::environment()) {
        Ok(settings) => settings,
        Err(problems) => {
            for problem in problems {
                complain(&problem);
            }
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let log_level = logging::start(settings.log_level, settings.log_format);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let listeners = match bind(&settings) {
        Ok(listeners) => listeners,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("blocking")
        .build();
    let served = match runtime {
        Ok(runtime) => runtime.block_on(serve(settings, listeners, log_level)),
        Err(error) => Err(ServerError::Start(error)),
    };
    exit_code(served)
}

fn exit_code(served: Result<Stopped, ServerError>) -> ExitCode {
    match served {
        Ok(Stopped::Drained) => {
            tracing::info!("stopped; every connection was finished");
            ExitCode::SUCCESS
        }
        Ok(Stopped::DeadlinePassed { left }) => {
            tracing::warn!(left, "stopped; connections were cut");
            ExitCode::from(EXIT_CUT)
        }
        Err(error) => {
            complain(&error.to_string());
            match error {
                ServerError::Rules(_) | ServerError::Tls(_) | ServerError::State(_) => {
                    ExitCode::from(EXIT_USAGE)
                }
                ServerError::Start(_) => ExitCode::FAILURE,
                ServerError::Reflection(_) | ServerError::WorkerEnded => ExitCode::from(EXIT_BUG),
            }
        }
    }
}

fn bind(settings: &Settings) -> Result<Listeners, BindError> {
    let listen = |purpose, address| Listener::bind(purpose, address, settings.reuse_port);
    let metrics = settings.metrics.as_ref();
    let listeners = Listeners {
        grpc: listen("gRPC", &settings.grpc)?,
        http: listen("HTTP", &settings.http)?,
        admin: listen("admin", &settings.admin)?,
        metrics: metrics.map(|at| listen("metrics", at)).transpose()?,
    };
    Ok(listeners)
}

async fn serve(
    settings: Settings,
    listeners: Listeners,
    log_level: LevelControl,
) -> Result<Stopped, ServerError> {
    let (stop, hurry) = stop_signals()?;
    if settings.config.is_none() && settings.xds.is_none() && !settings.noop {
        announce(&listeners.http);
    }
    tracing::info!(
        grpc = %listeners.grpc.address(),
        http = %listeners.http.address(),
        admin = %listeners.admin.address(),
        workers = settings.workers,
        "listening"
    );
    let clock = Clock::machine();
    let Opened {
        memory,
        secret,
        restored,
        keeper,
    } = state::open(&settings, &clock)?;
    let store = store(&settings, memory, &clock);
    let kept = store.clone();
    let mut engine = Engine::new(clock.clone(), secret.hasher(), store, settings.engine);
    if let Some(restored) = restored {
        engine.follow(restored);
    }
    let engine = Arc::new(engine);
    let log_refusals = Arc::clone(engine.refusal_log());
    log_refusals.set(settings.log_refusals);
    let keeping = keeper
        .map(|keeper| keeper.begin(Arc::clone(&engine)))
        .transpose()?;
    task::spawn(sweep(Arc::clone(&engine)));
    task::spawn(drive(Arc::clone(&engine)));
    task::spawn(name(Arc::clone(&engine)));
    task::spawn(watch(Arc::clone(&engine)));
    let feed = settings.xds.as_ref().map(|_| Feed::default());
    let load = rule_loading::load(&settings, feed.clone(), &engine);
    let (reloads, loader) = loader(load, settings.watch, clock.clone());
    task::spawn(reload_on_hangup(
        signal(SignalKind::hangup())?,
        reloads.clone(),
    ));
    let (health, starting) = Health::new(settings.ready_needs_rules);
    let stop_following = CancellationToken::new();
    let _stop_following = stop_following.clone().drop_guard();
    let mut server_options = settings.server;
    if let Some((options, feed)) = settings.xds.zip(feed.clone()) {
        // Not ready before the first rules came, unless that is wanted.
        let waiting = (!server_options.start_without_rules).then(|| starting.clone());
        // Its first answer may come before the first load, and may be a broken one.
        server_options.start_without_rules = true;
        let reloads = reloads.clone();
        task::spawn(xds::follow(options, feed, reloads, waiting, stop_following));
    }
    // Not ready before a shared store was seen.
    health.store(engine.store().shared().is_none());
    task::spawn(follow_store(Arc::clone(&engine), health.clone()));
    let bounds = server_options.bounds;
    let (spans, export) = match &settings.spans {
        None => (None, None),
        Some(options) => {
            let begun = export::begin(options, clock.clone());
            let (spans, export) = begun.map_err(io::Error::other)?;
            (Some(spans), Some(export))
        }
    };
    let privileges = Arc::new(settings.privileges);
    let app = App {
        rate_limit: Arc::new(
            RateLimit::new(Arc::clone(&engine), bounds, settings.answers.clone())
                .with_privileges(Arc::clone(&privileges)),
        ),
        services: Routes::new(limiter(&engine, bounds, settings.answers, &privileges)),
        admin: counters::router(Arc::clone(&engine), bounds)
            .merge(explain::router(Arc::clone(&engine), bounds))
            .merge(top::router(Arc::clone(&engine))),
        connections: Some(Arc::clone(engine.leases().connections())),
        on_stop: tell_sessions(Arc::clone(&engine)),
        inside: Arc::new(EngineInside {
            engine,
            feed,
            spans: export.as_ref().map(|export| Arc::clone(export.counts())),
        }),
        stats: Arc::new(Stats::new(settings.workers)),
        health,
        starting,
        loader,
        reloads,
        log_level,
        log_refusals,
        spans,
        clock,
    };
    let stopped = if settings.noop {
        let app = app.with_rate_limit(Arc::new(Noop));
        server::run(app, server_options, listeners, stop, hurry).await
    } else {
        server::run(app, server_options, listeners, stop, hurry).await
    };
    if let Some(shared) = kept.shared() {
        shared.redis().return_slices().await;
    }
    if let Some(keeping) = keeping {
        keeping.end().await;
    }
    if let Some(export) = export {
        export.end(LAST_SPANS).await;
    }
    stopped
}

/// What a collector gets to take the last spans.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// Sessions move, and are ended in peace a little before whatever is left is cut.
fn tell_sessions(engine: Arc<Engine>) -> OnStop {
    Box::new(move |left| {
        let left = left.saturating_sub(PARTING.min(left / 10));
        let now = engine.clock().now();
        engine.leases().drain(now.steady + left.into(), now);
    })
}

/// What a stream needs to end in peace.
const PARTING: Duration = Duration::from_millis(500);

/// Where counters live.
fn store(settings: &Settings, memory: MemoryStore, clock: &Clock) -> Store {
    match &settings.shared {
        None => Store::from(memory),
        Some(shared) => {
            let redis = RedisStore::connect(shared.redis.clone(), clock.clone());
            let fallback = Fallback::new(memory, shared.replicas);
            Store::from(SharedStore::new(redis, fallback))
        }
    }
}

/// Tells whether the shared store answers; without one there is nothing to tell.
async fn follow_store(engine: Arc<Engine>, health: Health) {
    let Some(shared) = engine.store().shared() else {
        return;
    };
    // None until the first probe is over.
    let mut told = None;
    loop {
        let seen = shared.redis().health();
        let probed = seen.is_up || seen.error.is_some();
        if probed && told != Some(seen.is_up) {
            health.store(seen.is_up);
            told = Some(seen.is_up);
            match seen.error {
                None => tracing::info!("the shared store answers probes"),
                Some(error) => tracing::warn!(error, "not ready: the shared store is away"),
            }
        }
        sleep(STORE_PAUSE).await;
    }
}

/// How often the health of the store is looked at; it is probed by itself.
const STORE_PAUSE: Duration = Duration::from_millis(100);

/// Resolves at the first SIGTERM or SIGINT, and at the second.
fn stop_signals() -> io::Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let mut signals = StopSignals::listen()?;
    let (stop, stopped) = oneshot::channel();
    let (hurry, hurried) = oneshot::channel();
    task::spawn(async move {
        let signal = signals.next().await;
        tracing::info!(signal, "stopping");
        // Fails when the server has ended by itself.
        let _ = stop.send(());
        let signal = signals.next().await;
        tracing::warn!(signal, "stopping at once");
        let _ = hurry.send(());
    });
    let told = async |told: oneshot::Receiver<()>| {
        if told.await.is_err() {
            pending::<()>().await;
        }
    };
    Ok((told(stopped), told(hurried)))
}

async fn reload_on_hangup(mut hangup: Signal, reloads: Reloads) {
    while hangup.recv().await.is_some() {
        tracing::info!("SIGHUP: reading the rules again");
        reloads.now().await;
    }
}

/// Frees counters that are as good as fresh, a few shards at a time: all of them within a minute,
/// and never a lock for long.
async fn sweep(engine: Arc<Engine>) {
    const PAUSE: Duration = Duration::from_millis(100);
    const SHARE: usize = 512;
    const LEASE_KEYS: usize = 64;
    let memory = engine.store().memory();
    let shards = memory.shards();
    let mut next = 0;
    loop {
        sleep(PAUSE).await;
        let now = engine.clock().now().wall;
        engine.leases().sweep(LEASE_KEYS, engine.clock().now());
        for _ in 0..shards.div_ceil(SHARE) {
            memory.sweep(next, now);
            next = (next + 1) % shards;
        }
    }
}

/// Gives the names of statistics to whoever has the most traffic.
async fn name(engine: Arc<Engine>) {
    loop {
        sleep(names::TURN.into()).await;
        engine.paths().names().turn();
    }
}

/// How often the store is asked how limits on work in flight stand, for the metrics.
const WATCH: Span = Span::from_secs(5);

/// Keeps the metrics of limits in the shared store fresh.
async fn watch(engine: Arc<Engine>) {
    engine.leases().watch(WATCH).await;
}

/// Serves who waits for permits when leases end that nobody gives back.
async fn drive(engine: Arc<Engine>) {
    engine.leases().drive(engine.clock()).await;
}

fn limiter(
    engine: &Arc<Engine>,
    bounds: Bounds,
    answers: AnswerOptions,
    privileges: &Arc<Privileges>,
) -> LimiterServiceServer<Limiter> {
    let limiter = Limiter::new(Arc::clone(engine), bounds)
        .with_answers(answers)
        .with_privileges(Arc::clone(privileges));
    LimiterServiceServer::new(limiter).max_decoding_message_size(bounds.max_message)
}

/// The first line that the quickstart prints, and how to see it refuse.
#[expect(
    clippy::print_stdout,
    reason = "it is what the program was started for"
)]
fn announce(http: &Listener) {
    let at = match http.address() {
        Address::Tcp { host, port } if host == "0.0.0.0" || host == "::" => {
            format!("http://127.0.0.1:{port}")
        }
        at @ Address::Tcp { .. } => format!("http://{at}"),
        Address::Unix(path) => format!("--unix-socket {} http://localhost", path.display()),
    };
    println!(
        "porteiro serves its quickstart rules from memory: 3 requests per user and minute \
         (--config PATH serves yours). Four times this gives 200, 200, 200, 429:\n\n  \
         curl -i {at}/json -d '{{\"domain\":\"quickstart\",\"descriptors\":[{{\"entries\":\
         [{{\"key\":\"user\",\"value\":\"ana\"}}]}}]}}'\n"
    );
}

/// What the admin endpoints show.
struct EngineInside {
    engine: Arc<Engine>,
    /// Of the control plane, when rules come from one.
    feed: Option<Feed>,
    /// When calls have spans.
    spans: Option<Arc<export::Counts>>,
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
        page
    }
}
