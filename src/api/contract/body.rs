//! The body of a refusal: RFC 9457 problem details, or JSON of one's own.

use std::cmp::Reverse;

use serde_json::{Value, json};

use crate::{
    algorithm::Retry,
    api::contract::{Contract, Told},
    engine::standing::Reason,
    model::{request::Request, time::Span},
    rules::answer::{Body, METADATA, Messages, Scope},
};

/// The problem types of the IETF draft.
const PROBLEM_TYPES: &str = "https://iana.org/assignments/http-problem-types#";

/// Content type and bytes.
pub(super) fn of(
    contract: &Contract<'_>,
    request: &Request<'_>,
    retry: Retry,
) -> Option<(&'static str, Vec<u8>)> {
    let answer = &contract.domain.answer;
    let mut facts = Facts {
        contract,
        retry,
        message: String::new(),
    };
    facts.message = filled_in(message(&answer.messages, request), &facts);
    let (content_type, body) = match &answer.body {
        Body::None => return None,
        Body::ProblemJson => ("application/problem+json", problem(&facts)),
        Body::Json(template) => ("application/json", filled(template, &facts)),
    };
    Some((content_type, serde_json::to_vec(&body).unwrap_or_default()))
}

struct Facts<'a> {
    contract: &'a Contract<'a>,
    retry: Retry,
    message: String,
}

impl Facts<'_> {
    fn wait(&self) -> Option<Span> {
        match self.retry {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        }
    }

    /// Seconds in milliseconds, rounded up, never below one millisecond.
    fn retry_after(&self) -> Value {
        #[expect(clippy::cast_precision_loss, reason = "a JSON number is a double")]
        let seconds = |wait: Span| wait.as_millis_up().max(1) as f64 / 1_000.0;
        self.wait().map_or(Value::Null, |wait| json!(seconds(wait)))
    }

    fn value(&self, placeholder: &str) -> Option<Value> {
        let Told { name, standing } = self.contract.binding();
        Some(match placeholder {
            "message" => json!(self.message),
            "retry_after" => self.retry_after(),
            "retry_after_seconds" => self
                .wait()
                .map_or(Value::Null, |wait| json!(wait.as_secs_up().max(1))),
            "limit" => json!(standing.capacity),
            "remaining" => json!(standing.remaining),
            "limit_name" => json!(name),
            "reason" => json!(standing.refused.unwrap_or(Reason::Rate).name()),
            "global" => json!(standing.scope() == Scope::Global),
            "scope" => json!(standing.scope().name()),
            other => {
                let name = other.strip_prefix(METADATA)?;
                if name.contains(['{', '}']) {
                    return None; // several placeholders, taken for one
                }
                let metadata = standing.rule.and_then(|rule| rule.metadata.as_ref());
                let value = metadata.and_then(|metadata| metadata.get(name));
                value.cloned().unwrap_or_default()
            }
        })
    }
}

fn problem(facts: &Facts<'_>) -> Value {
    let contract = facts.contract;
    let refusing = contract
        .limits
        .iter()
        .filter(|told| told.standing.refused.is_some());
    let violated: Vec<&str> = refusing.map(|told| told.name.as_str()).collect();
    let kind = match contract.binding().standing.scope() {
        Scope::Shared => "temporary-reduced-capacity",
        Scope::User | Scope::Global => "quota-exceeded",
    };
    let mut problem = json!({
        "type": format!("{PROBLEM_TYPES}{kind}"),
        "title": "Too many requests",
        "status": 429,
        "detail": facts.message,
        "reason": contract.binding().standing.refused.unwrap_or(Reason::Rate).name(),
        "violated-policies": violated,
    });
    if let (Some(_), Some(fields)) = (facts.wait(), problem.as_object_mut()) {
        fields.insert("retry_after".to_owned(), facts.retry_after());
    }
    problem
}

/// The template with its placeholders filled in; typed where a text is nothing but one.
fn filled(template: &Value, facts: &Facts<'_>) -> Value {
    match template {
        Value::String(text) => filled_text(text, facts),
        Value::Array(items) => items.iter().map(|item| filled(item, facts)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), filled(value, facts)))
            .collect(),
        other => other.clone(),
    }
}

fn filled_text(text: &str, facts: &Facts<'_>) -> Value {
    let only = text
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    if let Some(value) = only.and_then(|placeholder| facts.value(placeholder)) {
        return value;
    }
    Value::String(filled_in(text, facts))
}

/// The text with its placeholders filled in; texts as they are, other values as JSON.
fn filled_in(text: &str, facts: &Facts<'_>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        match after
            .split_once('}')
            .and_then(|(name, tail)| Some((facts.value(name)?, tail)))
        {
            Some((Value::String(value), tail)) => {
                out.push_str(&value);
                rest = tail;
            }
            Some((value, tail)) => {
                out.push_str(&value.to_string());
                rest = tail;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The text for the language that a descriptor entry names.
fn message<'m>(messages: &'m Messages, request: &Request<'_>) -> &'m str {
    let default = messages
        .default
        .as_deref()
        .unwrap_or("You are sending too many requests.");
    let language = messages.by.as_deref().and_then(|by| {
        let mut named = request.all_entries().iter().filter(|entry| entry.key == by);
        named.next().map(|entry| entry.value)
    });
    let text = language.and_then(|language| in_language(messages, language));
    text.unwrap_or(default)
}

/// The text for the heaviest tag of an `Accept-Language` value that there is one for, of equals the
/// first; `pt-BR` finds `pt`. Weight 0 means "not this one".
fn in_language<'m>(messages: &'m Messages, accepted: &str) -> Option<&'m str> {
    let mut tags: Vec<(u16, String)> = accepted
        .split(',')
        .map(|part| {
            let (tag, weight) = part.split_once(';').unwrap_or((part, ""));
            (thousandths(weight), tag.trim().to_ascii_lowercase())
        })
        .filter(|(weight, _)| *weight > 0)
        .collect();
    tags.sort_by_key(|(weight, _)| Reverse(*weight));
    tags.iter().find_map(|(_, tag)| {
        let primary = tag.split('-').next().unwrap_or_default();
        let exact = messages.texts.get(tag.as_str());
        exact
            .or_else(|| messages.texts.get(primary))
            .map(|text| &**text)
    })
}

/// The weight of `q=0.8`; what is no weight is a full one.
fn thousandths(weight: &str) -> u16 {
    let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
    let weight = weight.trim().parse::<f32>().unwrap_or(1.0).clamp(0.0, 1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 1000; not a number is 0"
    )]
    let thousandths = (weight * 1_000.0) as u16;
    thousandths
}
