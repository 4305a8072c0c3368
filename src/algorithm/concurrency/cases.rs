//! The vectors under `tests/cases/`, for the unit tests of this folder.

use serde_json::Value;

/// The file `tests/cases/NAME.json`.
pub(crate) fn case(name: &str) -> Value {
    let path = format!("{}/tests/cases/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The elements of a list.
pub(crate) fn rows<'a>(case: &'a Value, name: &str) -> &'a [Value] {
    case[name].as_array().unwrap()
}

/// A field that is a number.
pub(crate) fn number(row: &Value, name: &str) -> f64 {
    row[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} in {row}"))
}

/// A list of numbers.
pub(crate) fn numbers(list: &Value) -> Vec<f64> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_f64().unwrap())
        .collect()
}

/// Fails unless the two differ by at most `tolerance`.
#[track_caller]
pub(crate) fn close(got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() <= tolerance,
        "got {got}, expected {expected} ± {tolerance}"
    );
}
