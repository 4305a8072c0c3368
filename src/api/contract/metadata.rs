//! `dynamic_metadata` in our shape: the same facts, typed, for access logs and later filters.

use std::collections::BTreeMap;

use prost_types::{ListValue, Struct, Value, value::Kind};

use crate::{
    algorithm::Retry,
    api::{
        contract::{Contract, Told},
        metadata::{number, object, text},
    },
    engine::{
        standing::Reason,
        verdict::{Code, Verdict},
    },
};

/// Adds the domain; rule, limit, reason, remaining and `retry_after` of the binding limit, if one is
/// enforced; and what was refused but for a shadow mode.
pub fn add(contract: Option<&Contract<'_>>, verdict: &Verdict<'_>, metadata: &mut Struct) {
    let fields = &mut metadata.fields;
    if let Some(domain) = verdict.domain {
        set(fields, "domain", text(&domain.name));
    }
    if let Some(contract) = contract {
        add_binding(contract, fields);
    }
    let shadowed: Vec<Value> = shadowed(verdict).map(text).collect();
    if !shadowed.is_empty() {
        let list = Kind::ListValue(ListValue { values: shadowed });
        set(fields, "shadow_refused", Value { kind: Some(list) });
    }
    if let Some(degraded) = verdict.degraded {
        // Why the shared store did not decide, and what decided instead.
        let kind = Some(Kind::BoolValue(true));
        set(fields, "degraded", Value { kind });
        set(fields, "degraded_by", text(degraded.error.name()));
        set(fields, "degraded_answer", text(degraded.answer.name()));
    }
    if verdict.shadowed {
        let kind = Some(Kind::BoolValue(true));
        set(fields, "global_shadow_refused", Value { kind });
    }
}

fn add_binding(contract: &Contract<'_>, fields: &mut BTreeMap<String, Value>) {
    let Told { name, standing } = contract.binding();
    let rule = standing.rule.map_or("override", |rule| rule.path.as_str());
    set(fields, "rule", text(rule));
    if let Some(metadata) = standing.rule.and_then(|rule| rule.metadata.as_ref()) {
        set(fields, "rule_metadata", object(metadata));
    }
    set(fields, "limit", text(name));
    #[expect(clippy::cast_precision_loss, reason = "a JSON number is a double")]
    let remaining = standing.remaining as f64;
    set(fields, "remaining", number(remaining));
    if contract.retry.is_some() {
        let reason = standing.refused.unwrap_or(Reason::Rate);
        set(fields, "reason", text(reason.name()));
    }
    if let Some(Retry::After(wait)) = contract.retry {
        set(fields, "retry_after", number(wait.as_secs_f64()));
    }
}

/// Paths of shadow rules that would have refused.
fn shadowed<'v>(verdict: &'v Verdict<'_>) -> impl Iterator<Item = &'v str> {
    verdict.statuses().filter_map(|status| {
        let touched = status.touched?;
        let refused = status.outcomes.iter().any(|outcome| !outcome.allowed);
        let hidden = touched.shadow && refused && status.code == Code::Ok;
        hidden.then(|| touched.rule().map_or("", |rule| rule.path.as_str()))
    })
}

fn set(fields: &mut BTreeMap<String, Value>, name: &str, value: Value) {
    fields.insert(name.to_owned(), value);
}
