//! `dynamic_metadata`, in the reference's shape.

use std::collections::BTreeMap;

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::Value as Json;

use crate::{
    api::text::without_controls,
    engine::verdict::{Code, Verdict},
    model::request::{Descriptor, Entry, Override, Request},
};

/// Domain, descriptors as they were asked, and the metadata of rules that passed.
pub fn reference_metadata(request: &Request<'_>, verdict: &Verdict<'_>) -> Struct {
    let mut fields = BTreeMap::new();
    fields.insert("domain".to_owned(), text(request.domain));
    let descriptors = request
        .descriptors
        .iter()
        .map(|d| descriptor(request, d))
        .collect();
    fields.insert("descriptors".to_owned(), list(descriptors));
    if request.hits_addend > 0 {
        fields.insert(
            "hitsAddend".to_owned(),
            number(f64::from(request.hits_addend)),
        );
    }
    let merged = merged_metadata(request, verdict);
    if !merged.fields.is_empty() {
        fields.insert(
            "metadata".to_owned(),
            Value {
                kind: Some(Kind::StructValue(merged)),
            },
        );
    }
    Struct { fields }
}

fn descriptor(request: &Request<'_>, descriptor: &Descriptor) -> Value {
    let entry = |entry: &Entry<'_>| text(&format!("{}={}", entry.key, entry.value));
    let mut fields = BTreeMap::new();
    fields.insert(
        "entries".to_owned(),
        list(request.entries(descriptor).iter().map(entry).collect()),
    );
    if let Some(limit) = descriptor.limit {
        fields.insert("limit".to_owned(), text(&override_text(limit)));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), number(as_float(hits)));
    }
    Value {
        kind: Some(Kind::StructValue(Struct { fields })),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a JSON number is a double")]
fn as_float(number: u64) -> f64 {
    number as f64
}

/// The text form of an override as the reference prints it, two spaces and all.
fn override_text(limit: Override) -> String {
    let mut parts = Vec::new();
    if limit.requests_per_unit > 0 {
        parts.push(format!("requests_per_unit:{}", limit.requests_per_unit));
    }
    parts.push(format!("unit:{}", limit.unit.name().to_ascii_uppercase()));
    if limit.unit_multiplier > 1 {
        parts.push(format!(
            "unit_multiplier:{{value:{}}}",
            limit.unit_multiplier
        ));
    }
    parts.join("  ")
}

/// Metadata of the rules whose descriptors passed, the first descriptor first: the first to name a
/// key wins, nested maps are merged by the same rule, lists are not.
fn merged_metadata(request: &Request<'_>, verdict: &Verdict<'_>) -> Struct {
    let mut merged = Struct::default();
    for (status, descriptor) in verdict.statuses().zip(&request.descriptors) {
        if status.code != Code::Ok || status.binding.is_none() {
            continue;
        }
        let Some(touched) = status.touched else {
            continue;
        };
        let entries = request.entries(descriptor);
        let matched = verdict.domain.and_then(|domain| domain.find(entries));
        if touched.matched.is_some() && matched.is_some_and(|m| m.shows_values(entries)) {
            continue;
        }
        if let Some(metadata) = touched.rule().and_then(|rule| rule.metadata.as_ref()) {
            merge(&mut merged, metadata);
        }
    }
    merged
}

fn merge(into: &mut Struct, from: &serde_json::Map<String, Json>) {
    for (key, value) in from {
        let key = without_controls(key);
        match (into.fields.get_mut(&*key), value) {
            (None, _) => {
                into.fields.insert(key.into_owned(), value_of(value));
            }
            (
                Some(Value {
                    kind: Some(Kind::StructValue(into)),
                }),
                Json::Object(from),
            ) => {
                merge(into, from);
            }
            (Some(_), _) => {}
        }
    }
}

fn value_of(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(*value),
        Json::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or_default()),
        Json::String(value) => Kind::StringValue(without_controls(value).into_owned()),
        Json::Array(values) => Kind::ListValue(ListValue {
            values: values.iter().map(value_of).collect(),
        }),
        Json::Object(map) => return object(map),
    };
    Value { kind: Some(kind) }
}

pub(super) fn object(map: &serde_json::Map<String, Json>) -> Value {
    let mut fields = Struct::default();
    merge(&mut fields, map);
    Value {
        kind: Some(Kind::StructValue(fields)),
    }
}

pub(super) fn text(text: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(without_controls(text).into_owned())),
    }
}

pub(super) fn number(number: f64) -> Value {
    Value {
        kind: Some(Kind::NumberValue(number)),
    }
}

fn list(values: Vec<Value>) -> Value {
    Value {
        kind: Some(Kind::ListValue(ListValue { values })),
    }
}
