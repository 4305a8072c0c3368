//! Explain: the wire's question → the engine's explanation, and what it shows back.

use tonic::Status;

use super::peek;
use crate::{
    api::{bounds::Bounds, status},
    engine::{
        Engine,
        explain::{Effect, Explained},
        resolve::Touched,
    },
    model::request::Request,
    proto::porteiro::v1::{
        self as wire,
        explained_descriptor::{Charge, Level, Tried},
    },
    rules::{
        Stacking, tried,
        tried::{Candidate, End, Trace, Why},
    },
};

/// Answers one question.
///
/// # Errors
/// `INVALID_ARGUMENT`, `UNAVAILABLE`.
pub(in crate::api) async fn answer(
    engine: &Engine,
    bounds: Bounds,
    message: &wire::ExplainRequest,
) -> Result<wire::ExplainResponse, Status> {
    let (domain, descriptors) = (&message.domain, &message.descriptors);
    let request = peek::read(domain, descriptors, message.hits_addend, bounds)?;
    let installed = engine.installed();
    let explained = engine.explain(&installed, &request).await;
    let explained = explained.map_err(|error| status::of(&error))?;
    let domain = explained.peeked.verdict.domain;
    let stacking = domain.map_or("", |domain| match domain.stacking {
        Stacking::Independent => "independent",
        Stacking::AllOrNothing => "all_or_nothing",
    });
    Ok(wire::ExplainResponse {
        revision: installed.rules().revision().to_owned(),
        domain_known: domain.is_some(),
        stacking: stacking.to_owned(),
        before: Some(peek::response(&explained.peeked)),
        descriptors: of_descriptors(&request, &explained),
    })
}

fn of_descriptors(
    request: &Request<'_>,
    explained: &Explained<'_>,
) -> Vec<wire::ExplainedDescriptor> {
    let statuses = explained.peeked.verdict.statuses();
    let all = statuses.zip(&explained.effects).zip(&request.descriptors);
    all.enumerate()
        .map(|(index, ((status, effects), descriptor))| {
            let mut shown = wire::ExplainedDescriptor {
                end: "there are no rules for this domain".to_owned(),
                charges: effects.iter().map(charge).collect(),
                ..wire::ExplainedDescriptor::default()
            };
            if let Some(trace) = explained.traces.get(index) {
                let entries = request.entries(descriptor).iter().zip(&trace.levels);
                shown.levels = entries
                    .map(|(entry, tried)| level(entry.key, entry.value, tried))
                    .collect();
                shown.end = end(trace, status.touched, descriptor.limit.is_some());
                if let End::Rule(rule) = trace.end {
                    shown.rule.clone_from(&rule.path);
                    shown.file = rule.source.file.to_string();
                    shown.line = u32::try_from(rule.source.line).unwrap_or(u32::MAX);
                }
            }
            shown
        })
        .collect()
}

fn level(key: &str, value: &str, level: &tried::Tried<'_>) -> Level {
    Level {
        key: key.to_owned(),
        value: value.to_owned(),
        tried: level.candidates.iter().map(candidate).collect(),
        left_out: u32::try_from(level.left_out).unwrap_or(u32::MAX),
    }
}

fn candidate(candidate: &Candidate<'_>) -> Tried {
    Tried {
        key: candidate.node.key.to_string(),
        value: candidate.node.value.to_string(),
        chosen: matches!(candidate.why, Why::Chosen(_)),
        why: candidate.why.text().to_owned(),
    }
}

const fn charge(effect: &Effect) -> Charge {
    Charge {
        cost: effect.cost,
        charged: effect.charged,
        used_after: effect.used,
        remaining_after: effect.remaining,
    }
}

fn end(trace: &Trace<'_>, touched: Option<&Touched<'_>>, brought_limit: bool) -> String {
    let ended = match trace.end {
        End::Rule(rule) if rule.unlimited => "at a rule without limit",
        End::Rule(_) if touched.is_some_and(Touched::asks_nothing) => {
            "at a rule whose limits another rule of the request replaces"
        }
        End::Rule(_) => "at a rule",
        End::NoEntries => "it has no entries",
        End::NoLimit => "every entry matched, but there is no limit at that depth",
        End::NoMatch(at) => return format!("nothing matches entry {}", at + 1),
    };
    if brought_limit {
        format!("{ended}; the request brought a limit along")
    } else {
        ended.to_owned()
    }
}
