//! From the path of the rules to rules in place, at start and again.

use std::sync::Arc;

use super::settings::Settings;
use crate::{
    config::{self, Finding, LoadOptions, Severity},
    engine::Engine,
    server::{Load, Loaded, xds::Feed},
    telemetry::call::CallStat,
};

/// The rules of somebody who gave none.
const QUICKSTART: &str = include_str!("quickstart.yaml");

/// Loads what the settings name, or the quickstart. `feed` has what a control plane sent.
///
/// The first load takes everything or nothing. Later ones are atomic per domain: a domain with an
/// error keeps its old rules, the others move on.
pub(super) fn load(settings: &Settings, feed: Option<Feed>, engine: &Arc<Engine>) -> Load {
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
