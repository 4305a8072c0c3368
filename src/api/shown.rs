//! Rules as people and scripts read them.

use serde_json::{Map, Value, json};

use crate::{
    model::limit::{Algorithm, Anchor},
    rules::{Rules, limit::Limit, tree::Rule},
};

/// Domains by name, each with its rules in file order.
///
/// A rule: `path`, `file`, `line`, `limits`, and what is on of `unlimited`, `shadow_mode`,
/// `quota_mode`, `concurrency`. A limit: `name`, `algorithm`, `units` per `period_seconds`, and
/// `burst` where the algorithm has one.
pub fn rules(rules: &Rules) -> Value {
    let mut domains = Map::new();
    for domain in rules.domains() {
        let list: Vec<Value> = domain.rules().into_iter().map(|r| rule(r)).collect();
        domains.insert(domain.name.to_string(), list.into());
    }
    domains.into()
}

fn rule(rule: &Rule) -> Value {
    let mut shown = Map::new();
    shown.insert("path".into(), rule.path.as_str().into());
    shown.insert("file".into(), (*rule.source.file).into());
    shown.insert("line".into(), rule.source.line.into());
    let limits: Vec<Value> = rule.limits.iter().map(limit).collect();
    shown.insert("limits".into(), limits.into());
    for (name, on) in [
        ("unlimited", rule.unlimited),
        ("shadow_mode", rule.shadow_mode),
        ("quota_mode", rule.quota_mode),
        ("concurrency", rule.concurrency.is_some()),
    ] {
        if on {
            shown.insert(name.into(), true.into());
        }
    }
    shown.into()
}

fn limit(limit: &Limit) -> Value {
    let (algorithm, has_burst) = algorithm(&limit.algorithm);
    let mut shown = json!({
        "algorithm": algorithm,
        "units": limit.quota.units(),
        "period_seconds": limit.quota.period().as_secs_f64(),
    });
    if let Some(name) = &limit.name {
        shown["name"] = (**name).into();
    }
    if has_burst {
        shown["burst"] = limit.quota.burst().into();
    }
    shown
}

/// Its name in rule files, and whether the burst means anything to it.
pub fn algorithm(algorithm: &Algorithm) -> (&'static str, bool) {
    match algorithm {
        Algorithm::FixedWindow(Anchor::Clock) => ("fixed_window", false),
        Algorithm::FixedWindow(Anchor::FirstHit) => ("fixed_window (first_hit)", false),
        Algorithm::FixedWindow(Anchor::LastHit) => ("fixed_window (last_hit)", false),
        Algorithm::FixedWindow(Anchor::Calendar(_)) => ("fixed_window (calendar)", false),
        Algorithm::SlidingLog => ("sliding_log", false),
        Algorithm::SlidingWindow => ("sliding_window", false),
        Algorithm::TokenBucket => ("token_bucket", true),
        Algorithm::LeakyBucket => ("leaky_bucket", true),
        Algorithm::LeakyQueue => ("leaky_queue", true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LoadOptions, parse};

    #[test]
    fn rules_are_shown_with_limit_file_and_line() {
        let text = "domain: d\ndescriptors:\n- key: b\n  descriptors:\n  - key: c\n    rate_limit: {unit: minute, requests_per_unit: 3, name: n}\n- key: a\n  shadow_mode: true\n  rate_limit: {unlimited: true}\n";
        let loaded = parse(&[("f.yaml", text)], &LoadOptions::default());
        let shown = rules(&loaded.into_rules().unwrap());
        assert_eq!(
            shown,
            json!({"d": [
                {
                    "path": "d.b.c", "file": "f.yaml", "line": 5,
                    "limits": [{
                        "name": "n", "algorithm": "fixed_window", "units": 3,
                        "period_seconds": 60.0,
                    }],
                },
                {
                    "path": "d.a", "file": "f.yaml", "line": 7, "limits": [],
                    "unlimited": true, "shadow_mode": true,
                },
            ]})
        );
    }
}
