//! `dynamic_metadata` in our shape: the same facts, typed, for access logs and later filters.

use std::collections::BTreeMap;

use prost_types::{Struct, Value, value::Kind};

use crate::{
    algorithm::Retry,
    api::contract::{Contract, policy_name},
    engine::verdict::{Code, Verdict},
};

/// Adds domain, rule, limit, reason, remaining and `retry_after` of the binding limit, and the
/// rules that would have refused if they were not in shadow mode.
pub fn add(contract: &Contract<'_>, verdict: &Verdict<'_>, metadata: &mut Struct) {
    let binding = contract.binding;
    let fields = &mut metadata.fields;
    set(
        fields,
        "domain",
        Kind::StringValue(contract.domain.name.to_string()),
    );
    let rule = binding.rule.map_or("override", |rule| rule.path.as_str());
    set(fields, "rule", Kind::StringValue(rule.to_owned()));
    set(fields, "limit", Kind::StringValue(policy_name(binding)));
    set(fields, "remaining", number(binding.remaining));
    if let Some(reason) = binding.refused {
        set(
            fields,
            "reason",
            Kind::StringValue(reason.name().to_owned()),
        );
    }
    if let Some(Retry::After(wait)) = contract.retry {
        set(fields, "retry_after", Kind::NumberValue(wait.as_secs_f64()));
    }
    let shadowed: Vec<Value> = shadowed(verdict).map(text).collect();
    if !shadowed.is_empty() {
        let list = prost_types::ListValue { values: shadowed };
        set(fields, "shadow_refused", Kind::ListValue(list));
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

fn set(fields: &mut BTreeMap<String, Value>, name: &str, kind: Kind) {
    fields.insert(name.to_owned(), Value { kind: Some(kind) });
}

fn text(text: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a JSON number is a double")]
fn number(number: u64) -> Kind {
    Kind::NumberValue(number as f64)
}
