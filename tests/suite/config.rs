//! Rule files: accepted and refused as the reference does, and with the same limits.

use std::fs;

use porteiro::{
    config::{self, LoadOptions},
    rules::Rules,
};
use serde_json::{Value, json};

/// Reads rule files, given in order.
fn parse(files: &[String], merge: bool) -> config::Loaded {
    let names: Vec<String> = (0..files.len()).map(|i| format!("{i}.yaml")).collect();
    let files: Vec<(&str, &str)> = names
        .iter()
        .zip(files)
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let options = LoadOptions {
        merge_domains: merge,
        ..LoadOptions::default()
    };
    config::parse(&files, &options)
}

/// The limits as the recordings list them: path, unit, requests per unit, shadow, quota.
fn limits(rules: &Rules) -> Vec<Value> {
    let mut limits: Vec<Value> = rules
        .rules()
        .iter()
        .map(|rule| {
            let shown = rule.limits.first().map(|limit| limit.shown);
            let unit = shown.and_then(|shown| shown.unit);
            let unit = unit.map_or("UNKNOWN".to_owned(), |unit| unit.name().to_uppercase());
            let requests = shown.map_or(0, |shown| shown.requests_per_unit);
            json!([rule.path, unit, requests, rule.shadow_mode, rule.quota_mode])
        })
        .collect();
    limits.sort_by_key(|limit| limit[0].as_str().unwrap().to_owned());
    limits
}

/// Compares every line of a recording; returns how many were compared and those that differ.
fn compare(path: &str) -> (usize, Vec<String>) {
    let text = fs::read_to_string(path).unwrap();
    let mut different = Vec::new();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let files: Vec<String> = serde_json::from_value(case["files"].clone()).unwrap();
        let loaded = parse(&files, case["merge"].as_bool().unwrap());
        let mut found = loaded.findings.iter().map(ToString::to_string);
        let found = found
            .find(|finding| finding.contains("error"))
            .unwrap_or_default();
        let ours = match loaded.into_rules() {
            Ok(rules) => json!({"accepted": true, "limits": limits(&rules)}),
            Err(_) => json!({"accepted": false}),
        };
        let mut theirs = json!({"accepted": case["accepted"]});
        if case["accepted"] == true {
            theirs["limits"] = case["limits"].clone();
        }
        if ours != theirs {
            let files = files.join("\n=====\n");
            different.push(format!(
                "{}: theirs {theirs} ours {ours} {found}\n{files}",
                case["id"]
            ));
        }
    }
    (text.lines().count(), different)
}

#[test]
fn recorded_files_are_taken_and_refused_as_the_reference_does() {
    for name in ["configs", "scalars"] {
        let (compared, different) = compare(&format!("tests/cases/recorded/{name}.jsonl"));
        let equal = compared - different.len();
        println!("{name}.jsonl: {compared} compared, {equal} equal");
        for d in &different {
            println!("{d}");
        }
    }
}
