//! Where rules come from (files, a control plane, the quickstart), and how they get in place, at
//! start and again.

use std::sync::Arc;

use tokio::task;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    cli::settings::Settings,
    config::{self, Finding, LoadOptions, Severity},
    engine::Engine,
    server::{
        Latch, Load, Loaded, Loader, Reloads, loader,
        xds::{self, Feed},
    },
    telemetry::call::CallStat,
};

/// The rules of somebody who gave none.
const QUICKSTART: &str = include_str!("quickstart.yaml");

/// Rules on their way to an engine.
pub(super) struct RuleSource {
    /// Loads them, once it runs.
    pub(super) loader: Loader,
    /// The handle of `loader`.
    pub(super) reloads: Reloads,
    /// What the control plane said, when rules come from one.
    pub(super) feed: Option<Feed>,
    /// Dropped, the control plane is not followed any more.
    pub(super) following: DropGuard,
}

impl RuleSource {
    /// Begins to follow the control plane that the settings name, if they name one: then the server
    /// starts without rules, and `starting` is held until the first ones came.
    pub(super) fn begin(settings: &mut Settings, engine: &Arc<Engine>, starting: &Latch) -> Self {
        let feed = settings.xds.as_ref().map(|_| Feed::default());
        let load = load(settings, feed.clone(), engine);
        let (reloads, loader) = loader(load, settings.watch.clone(), engine.clock().clone());
        let stop = CancellationToken::new();
        if let Some((options, feed)) = settings.xds.take().zip(feed.clone()) {
            // Not ready before the first rules came, unless that is wanted.
            let waiting = (!settings.server.start_without_rules).then(|| starting.clone());
            // Its first answer may come before the first load, and may be a broken one.
            settings.server.start_without_rules = true;
            let follow = xds::follow(options, feed, reloads.clone(), waiting, stop.clone());
            task::spawn(follow);
        }
        Self {
            loader,
            reloads,
            feed,
            following: stop.drop_guard(),
        }
    }
}

/// Loads what the settings name, or the quickstart. `feed` has what a control plane sent.
///
/// The first load takes everything or nothing. Later ones are atomic per domain: a domain with an
/// error keeps its old rules, the others move on.
fn load(settings: &Settings, feed: Option<Feed>, engine: &Arc<Engine>) -> Load {
    let path = settings.config.clone();
    let engine = Arc::clone(engine);
    let options = LoadOptions {
        merge_domains: settings.merge_domains,
        ..LoadOptions::default()
    };
    Arc::new(move || {
        let loaded = match (&feed, &path) {
            (Some(feed), _) => {
                let Some(files) = feed.files() else {
                    // The control plane has said nothing yet, which is no fault of the rules.
                    return Ok(Loaded::default());
                };
                let files = files.inspect_err(|_| {
                    engine.calls().count(CallStat::ConfigLoadError);
                })?;
                let texts: Vec<_> = files
                    .iter()
                    .map(|(name, text)| (&**name, &**text))
                    .collect();
                config::parse(&texts, &options)
            }
            (None, Some(path)) => config::load(path, &options),
            (None, None) => config::parse(&[("quickstart.yaml", QUICKSTART)], &options),
        };
        install(&engine, loaded)
    })
}

fn install(engine: &Engine, loaded: config::Loaded) -> Result<Loaded, String> {
    let broken = loaded.has_errors();
    if broken {
        engine.calls().count(CallStat::ConfigLoadError);
    }
    for finding in &loaded.findings {
        if finding.severity == Severity::Warning {
            tracing::warn!("{finding}");
        }
    }
    let findings = errors(&loaded.findings);
    let installed = engine.installed();
    let nothing_sound = || loaded.domains.iter().all(|domain| domain.domain.is_none());
    if broken && (!installed.is_loaded() || nothing_sound()) {
        return Err(findings.join("\n"));
    }
    let reload = loaded.reloading(installed.rules());
    let result = Loaded {
        domains: reload.rules.domains().len(),
        rules: reload.rules.rules().len(),
        findings,
        revision: reload.hash,
    };
    engine.install(reload.rules);
    Ok(result)
}

fn errors(findings: &[Finding]) -> Vec<String> {
    findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(ToString::to_string)
        .collect()
}
