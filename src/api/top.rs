//! `GET /top` of the admin surface: who asks a rule most, and whom it refuses most.
//!
//! Parameters of the query: `domain`; `rule`, the path of one of its rules, all of them if absent;
//! `n`, the most callers of each kind (10 if absent, 64 at most); `format`, `json` or `text`.
//!
//! Each count comes with `over_by`: it is never below the truth, and above it by at most so much.
//! Where `sample` is not 1 the counts of `heaviest` are scaled from one request in so many, once a
//! worker has more than a few dozen in a second; `most_refused` never is.
//!
//! It is not on the gRPC port: that is where callers are, and who the others are is not for them.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use axum::{
    Json, Router,
    extract::{Query, State},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Map, Value, json};

use super::counters::{Parameters, Refused};
use crate::{
    api::text::without_controls,
    engine::{
        Engine,
        top::{Caller, Callers, Top},
    },
    telemetry::top::ROOM,
};

/// Callers of each kind, unless the query says how many.
const CALLERS: usize = 10;

/// The route.
pub fn router(engine: Arc<Engine>) -> Router {
    Router::new().route("/top", get(top)).with_state(engine)
}

async fn top(
    State(engine): State<Arc<Engine>>,
    Query(parameters): Parameters,
) -> Result<Response, Refused> {
    let asked = Asked::read(&parameters)?;
    let installed = engine.installed();
    let top = engine
        .top(&installed, &asked.domain, asked.rule.as_deref(), asked.most)
        .ok_or_else(|| Refused::bad(format!("there is no domain `{}`", asked.domain)))?;
    if top.rules.is_empty() && top.unwatched == 0 {
        let rule = asked.rule.unwrap_or_default();
        return Err(Refused::bad(format!("there is no rule `{rule}`")));
    }
    Ok(if asked.as_text {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write(&mut text, &top);
        text.into_response()
    } else {
        Json(shown(&top)).into_response()
    })
}

struct Asked {
    domain: String,
    rule: Option<String>,
    most: usize,
    as_text: bool,
}

impl Asked {
    fn read(parameters: &[(String, String)]) -> Result<Self, Refused> {
        let mut asked = Self {
            domain: String::new(),
            rule: None,
            most: CALLERS,
            as_text: false,
        };
        for (name, value) in parameters {
            match (name.as_str(), value.as_str()) {
                ("domain", domain) => domain.clone_into(&mut asked.domain),
                ("rule", rule) => asked.rule = Some(rule.to_owned()),
                ("n", number) => {
                    let number = number.parse().ok().filter(|n| (1..=ROOM).contains(n));
                    asked.most = number.ok_or_else(|| {
                        Refused::bad(format!("n is `{value}`, which is not from 1 to {ROOM}"))
                    })?;
                }
                ("format", "json") => asked.as_text = false,
                ("format", "text") => asked.as_text = true,
                ("format", other) => {
                    return Err(Refused::bad(format!(
                        "format is `{other}`: want json or text"
                    )));
                }
                (other, _) => {
                    return Err(Refused::bad(format!(
                        "`{other}` is no parameter here: domain, rule, n, format"
                    )));
                }
            }
        }
        if asked.domain.is_empty() {
            return Err(Refused::bad("domain is missing".to_owned()));
        }
        Ok(asked)
    }
}

/// The first 16 of 32 hex digits: enough to tell callers apart.
fn id(caller: &Caller) -> String {
    format!("{:016x}", caller.id.bits() >> 64)
}

fn shown(top: &Top) -> Value {
    let callers = |list: &[Caller]| -> Value {
        let one = |caller: &Caller| {
            let mut shown = Map::new();
            shown.insert("id".into(), id(caller).into());
            if let Some(name) = &caller.name {
                shown.insert("descriptor".into(), without_controls(name).into());
            }
            shown.insert("hits".into(), caller.hits.into());
            shown.insert("over_by".into(), caller.over.into());
            Value::from(shown)
        };
        list.iter().map(one).collect()
    };
    let rule = |rule: &Callers| {
        json!({
            "rule": rule.rule,
            "seconds": rule.span.as_secs_f64(),
            "hits": rule.hits,
            "refused": rule.refused,
            "heaviest": callers(&rule.heaviest),
            "most_refused": callers(&rule.most_refused),
        })
    };
    json!({
        "sample": top.sample,
        "unwatched_rules": top.unwatched,
        "rules": top.rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

fn write(out: &mut String, top: &Top) -> fmt::Result {
    match top.sample {
        0 => writeln!(out, "callers are not counted (top-sample 0)")?,
        1 => {}
        sample => writeln!(
            out,
            "hits of busy workers are scaled from one request in {sample}; refused ones are not"
        )?,
    }
    for rule in &top.rules {
        let seconds = rule.span.as_secs_up();
        writeln!(
            out,
            "\n{}: {} hits, {} refused in {seconds} s",
            rule.rule, rule.hits, rule.refused
        )?;
        for (title, callers) in [
            ("heaviest", &rule.heaviest),
            ("most refused", &rule.most_refused),
        ] {
            if callers.is_empty() {
                continue;
            }
            writeln!(out, "  {title}")?;
            for caller in callers {
                write!(out, "  {:>12}  {}", caller.hits, id(caller))?;
                if let Some(name) = &caller.name {
                    write!(out, "  {}", without_controls(name))?;
                }
                if caller.over > 0 {
                    write!(out, "  (at most {} too many)", caller.over)?;
                }
                writeln!(out)?;
            }
        }
    }
    if top.unwatched > 0 && top.sample > 0 {
        writeln!(
            out,
            "\n{} rules are not watched: they have no limit, or are too many",
            top.unwatched
        )?;
    }
    Ok(())
}
