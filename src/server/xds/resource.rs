//! Rules as messages, turned into the rule files that they stand for: one parser, and the same
//! findings, wherever rules come from.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use prost_types::{Any, Struct, Value, value::Kind};
use serde_json::json;

use super::{RuleFile, TYPE_URL};
use crate::proto::RULE_DESCRIPTORS;

static RULES: LazyLock<Option<MessageDescriptor>> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(RULE_DESCRIPTORS).ok()?;
    pool.get_message_by_name("ratelimit.config.ratelimit.v3.RateLimitConfig")
});

/// The rule files of a state of the world, in its order.
///
/// # Errors
/// The first resource that is not what it says: then nothing of this state can be trusted.
pub(super) fn files(resources: &[Any]) -> Result<Vec<RuleFile>, String> {
    let files = resources.iter().enumerate();
    files.map(|(index, any)| file(index, any)).collect()
}

fn file(index: usize, any: &Any) -> Result<RuleFile, String> {
    if any.type_url != TYPE_URL {
        return Err(format!("resource {index} is a {}", any.type_url));
    }
    let wrong = |error: &dyn std::fmt::Display| format!("resource {index}: {error}");
    let descriptor = RULES.as_ref().ok_or("bug: no descriptors")?;
    let message = DynamicMessage::decode(descriptor.clone(), &any.value[..])
        .map_err(|error| wrong(&error))?;
    // Names as rule files write them; what is not set stays out.
    let options = SerializeOptions::new().use_proto_field_name(true);
    let mut file = message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| wrong(&error))?;
    // The resource's name is no field of a rule file.
    let name = file
        .as_object_mut()
        .and_then(|fields| fields.remove("name"));
    let name = name.as_ref().and_then(|name| name.as_str());
    let name = match name {
        Some(name) => format!("xds:{}", name.escape_debug()),
        None => format!("xds:{index}"),
    };
    if file == json!({}) {
        return Err(wrong(&"it is empty"));
    }
    // Indented, so that findings name a line.
    let text = serde_json::to_string_pretty(&file).map_err(|error| wrong(&error))?;
    Ok((name, text))
}

/// `Node.metadata`.
pub(super) fn metadata(pairs: &[(String, String)]) -> Option<Struct> {
    let field = |(name, value): &(String, String)| {
        let kind = Some(Kind::StringValue(value.clone()));
        (name.clone(), Value { kind })
    };
    (!pairs.is_empty()).then(|| Struct {
        fields: pairs.iter().map(field).collect(),
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::{
        config::{LoadOptions, parse},
        proto::ratelimit::config::ratelimit::v3::{
            RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
        },
    };

    fn any(config: &RateLimitConfig) -> Any {
        Any {
            type_url: TYPE_URL.to_owned(),
            value: config.encode_to_vec(),
        }
    }

    fn full() -> RateLimitConfig {
        let unit = |unit: RateLimitUnit| i32::from(unit);
        let text = |text: &str| Value {
            kind: Some(Kind::StringValue(text.to_owned())),
        };
        RateLimitConfig {
            name: "listener/one".to_owned(),
            domain: "edge".to_owned(),
            descriptors: vec![
                RateLimitDescriptor {
                    key: "tenant".to_owned(),
                    value: "a \"quoted\" one".to_owned(),
                    rate_limit: Some(RateLimitPolicy {
                        unit: unit(RateLimitUnit::Week),
                        requests_per_unit: u32::MAX,
                        name: "weekly".to_owned(),
                        replaces: vec![RateLimitReplace {
                            name: "other".to_owned(),
                        }],
                        ..RateLimitPolicy::default()
                    }),
                    detailed_metric: true,
                    metadata: Some(Struct {
                        fields: [("plan".to_owned(), text("free"))].into(),
                    }),
                    ..RateLimitDescriptor::default()
                },
                RateLimitDescriptor {
                    key: "staff".to_owned(),
                    // Without a unit: UNKNOWN.
                    rate_limit: Some(RateLimitPolicy {
                        unlimited: true,
                        ..RateLimitPolicy::default()
                    }),
                    ..RateLimitDescriptor::default()
                },
                RateLimitDescriptor {
                    key: "rule-0-match-0".to_owned(),
                    value: "rule-0-match-0".to_owned(),
                    shadow_mode: true,
                    quota_mode: true,
                    descriptors: vec![RateLimitDescriptor {
                        key: "remote_address".to_owned(),
                        rate_limit: Some(RateLimitPolicy {
                            unit: unit(RateLimitUnit::Second),
                            requests_per_unit: 0,
                            ..RateLimitPolicy::default()
                        }),
                        ..RateLimitDescriptor::default()
                    }],
                    ..RateLimitDescriptor::default()
                },
            ],
        }
    }

    #[test]
    fn a_message_means_what_the_rule_file_means() {
        let written = r#"
domain: edge
descriptors:
  - key: tenant
    value: a "quoted" one
    detailed_metric: true
    metadata: {plan: free}
    rate_limit: {unit: week, requests_per_unit: 4294967295, name: weekly, replaces: [{name: other}]}
  - key: staff
    rate_limit: {unlimited: true}
  - key: rule-0-match-0
    value: rule-0-match-0
    shadow_mode: true
    quota_mode: true
    descriptors:
      - key: remote_address
        rate_limit: {unit: second, requests_per_unit: 0}
"#;
        let files = files(&[any(&full())]).unwrap();
        assert_eq!(files[0].0, "xds:listener/one");
        let shown = |text: &str| {
            let loaded = parse(&[("rules", text)], &LoadOptions::default());
            assert!(!loaded.has_errors(), "{:?}", loaded.findings);
            let rules = loaded.into_rules().unwrap();
            crate::api::shown::rules(&rules).to_string()
        };
        let strip = |text: String| {
            // Where a rule stands differs, of course.
            let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
            without_places(&mut value);
            value
        };
        assert_eq!(strip(shown(&files[0].1)), strip(shown(written)));
    }

    fn without_places(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                for place in ["line", "column", "at", "place"] {
                    fields.remove(place);
                }
                fields.values_mut().for_each(without_places);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(without_places),
            _ => {}
        }
    }

    #[test]
    fn what_is_not_understood_refuses_the_whole_answer() {
        let mut broken = any(&full());
        broken.value.push(0xff);
        let error = files(&[any(&full()), broken]).unwrap_err();
        assert!(error.starts_with("resource 1: "), "{error}");
        let other = Any {
            type_url: "type.googleapis.com/envoy.Other".to_owned(),
            value: Vec::new(),
        };
        let error = files(&[other]).unwrap_err();
        assert_eq!(error, "resource 0 is a type.googleapis.com/envoy.Other");
        let error = files(&[any(&RateLimitConfig::default())]).unwrap_err();
        assert_eq!(error, "resource 0: it is empty");
        assert_eq!(files(&[]).unwrap(), []);
    }

    #[test]
    fn a_unit_that_nobody_knows_is_a_finding_with_a_place() {
        let mut config = full();
        config.descriptors[2].descriptors[0]
            .rate_limit
            .as_mut()
            .unwrap()
            .unit = 99;
        let files = files(&[any(&config)]).unwrap();
        let named: Vec<(&str, &str)> = files.iter().map(|(a, b)| (&**a, &**b)).collect();
        let loaded = parse(&named, &LoadOptions::default());
        let finding = loaded.findings[0].to_string();
        assert!(finding.contains("xds:listener/one:"), "{finding}");
        assert!(finding.contains("99"), "{finding}");
    }
}
