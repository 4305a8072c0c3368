//! `porteiro serve`: puts the parts together, and takes them apart again.
//!
//! The order, and where each step is:
//! 1. settings ([`settings`]), log, and the addresses ([`listen`]): whatever is wrong is said
//!    before anything runs;
//! 2. what the life before left ([`state`]) and where counters live ([`store`]): the engine;
//! 3. what runs beside the calls ([`chores`], [`signals`], the spans' export);
//! 4. where rules come from ([`rules`]);
//! 5. the services ([`app`]), and [`server::run`] until the process is told to stop;
//! 6. what has to be given back or written when nothing is decided any more.

mod app;
mod chores;
mod listen;
mod rules;
mod signals;
mod state;
mod store;

use std::{io, mem, process::ExitCode, sync::Arc, time::Duration};

use clap::{ArgMatches, Command};
use tokio::runtime;

use self::{
    app::EngineInside,
    rules::RuleSource,
    state::{Keeping, Opened},
};
use super::{
    EXIT_BUG, EXIT_CUT, EXIT_USAGE, complain,
    settings::{self, Settings},
};
use crate::{
    engine::Engine,
    model::time::Clock,
    server::{self, App, BindError, Health, Listeners, ServerError, Stats, Stopped, noop::Noop},
    telemetry::{
        lines::Lines,
        logging::{self, LevelControl},
        spans::{
            Spans,
            export::{self, Export},
        },
    },
};

/// What a collector gets to take the last spans.
const LAST_SPANS: Duration = Duration::from_secs(5);
/// What whoever reads the log gets to take the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

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
    let (log_level, lines) = match logging::start(settings.log_level, settings.log_format) {
        Ok(log) => log,
        Err(error) => {
            complain(&format!("no log can be written: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let log = Log {
        level: log_level,
        lines: lines.clone(),
    };
    let code = match serve_with_log(settings, log) {
        Ok(Stopped::Drained) => {
            tracing::info!("stopped; every connection was finished");
            ExitCode::SUCCESS
        }
        Ok(Stopped::DeadlinePassed { left }) => {
            tracing::warn!(left, "stopped; connections were cut");
            ExitCode::from(EXIT_CUT)
        }
        Err(failure) => {
            // Behind what led to it.
            lines.flush(LAST_LINES);
            complain(&failure.why);
            failure.code
        }
    };
    lines.flush(LAST_LINES);
    code
}

/// Where lines of the log go, and which.
struct Log {
    level: LevelControl,
    lines: Lines,
}

/// Why it ends without having been told to.
struct Failure {
    code: ExitCode,
    why: String,
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        Self {
            code: ExitCode::FAILURE,
            why: error.to_string(),
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let code = match error {
            ServerError::Rules(_) | ServerError::Tls(_) | ServerError::State(_) => {
                ExitCode::from(EXIT_USAGE)
            }
            ServerError::Start(_) => ExitCode::FAILURE,
            ServerError::Reflection(_) | ServerError::WorkerEnded => ExitCode::from(EXIT_BUG),
        };
        let why = error.to_string();
        Self { code, why }
    }
}

fn serve_with_log(settings: Settings, log: Log) -> Result<Stopped, Failure> {
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let listeners = listen::bind(&settings)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("blocking")
        .build()
        .map_err(ServerError::Start)?;
    Ok(runtime.block_on(serve(settings, listeners, log))?)
}

async fn serve(
    mut settings: Settings,
    listeners: Listeners,
    log: Log,
) -> Result<Stopped, ServerError> {
    let (stop, hurry) = signals::stop()?;
    listen::announce(&settings, &listeners);
    let clock = Clock::machine();
    let (engine, keeping) = engine(&settings, &clock)?;
    chores::begin(&engine);
    let (health, starting) = Health::new(settings.ready_needs_rules);
    store::tell_health(&engine, &health);
    let RuleSource {
        loader,
        reloads,
        feed,
        following: _following,
    } = RuleSource::begin(&mut settings, &engine, &starting);
    signals::reload_on_hangup(reloads.clone())?;
    let (spans, export) = spans(&settings, &clock)?;

    let privileges = Arc::new(mem::take(&mut settings.privileges));
    let app = App {
        rate_limit: app::rate_limit(&engine, &settings, &privileges),
        services: app::limiter(&engine, &settings, &privileges),
        admin: app::admin(&engine, settings.server.bounds),
        connections: Some(Arc::clone(engine.leases().connections())),
        on_stop: app::tell_sessions(Arc::clone(&engine)),
        inside: Arc::new(EngineInside {
            engine: Arc::clone(&engine),
            feed,
            lines: log.lines,
            spans: export.as_ref().map(|export| Arc::clone(export.counts())),
        }),
        stats: Arc::new(Stats::new(settings.workers)),
        health,
        starting,
        loader,
        reloads,
        log_level: log.level,
        log_refusals: Arc::clone(engine.refusal_log()),
        spans,
        clock,
    };
    let stopped = if settings.noop {
        let app = app.with_rate_limit(Arc::new(Noop));
        server::run(app, settings.server, listeners, stop, hurry).await
    } else {
        server::run(app, settings.server, listeners, stop, hurry).await
    };

    store::part(engine.store()).await;
    if let Some(keeping) = keeping {
        keeping.end().await;
    }
    if let Some(export) = export {
        export.end(LAST_SPANS).await;
    }
    stopped
}

/// The engine that goes on where the life before ended; what writes its state down, if somebody
/// wants that.
fn engine(
    settings: &Settings,
    clock: &Clock,
) -> Result<(Arc<Engine>, Option<Keeping>), ServerError> {
    let Opened {
        memory,
        secret,
        restored,
        keeper,
    } = state::open(settings, clock)?;
    let store = store::open(settings, memory, clock);
    let mut engine = Engine::new(clock.clone(), secret.hasher(), store, settings.engine);
    if let Some(restored) = restored {
        engine.follow(restored);
    }
    let engine = Arc::new(engine);
    engine.refusal_log().set(settings.log_refusals);
    let keeping = keeper
        .map(|keeper| keeper.begin(Arc::clone(&engine)))
        .transpose()?;
    Ok((engine, keeping))
}

/// What makes spans of calls and what sends them, if somebody wants them.
fn spans(
    settings: &Settings,
    clock: &Clock,
) -> Result<(Option<Arc<Spans>>, Option<Export>), ServerError> {
    let Some(options) = &settings.spans else {
        return Ok((None, None));
    };
    let begun = export::begin(options, clock.clone());
    let (spans, export) = begun.map_err(io::Error::other)?;
    Ok((Some(spans), Some(export)))
}
