//! `metadata:` of a rule: free-form, returned in `dynamic_metadata` as a protobuf Struct.

use serde_json::{Map, Number, Value};

use crate::config::{
    finding::quoted,
    reader::{Reader, is_merge, merged},
    scalar::Scalar,
    yaml::{Content, Node, Word},
};

/// Lays a mapping over what is there; null takes away what is there.
pub(super) fn read(reader: &mut Reader, node: &Node, slot: &mut Option<Map<String, Value>>) {
    match &node.target().content {
        Content::Map(_) => mapping(reader, node, as_written, slot.get_or_insert_default()),
        Content::Scalar(word) if word.value == Scalar::Null => *slot = None,
        _ => reader.wrong_type(node, "a mapping"),
    }
}

fn mapping(
    reader: &mut Reader,
    node: &Node,
    key_text: fn(&Word) -> String,
    into: &mut Map<String, Value>,
) {
    let Content::Map(entries) = &node.target().content else {
        return;
    };
    for (key, value) in entries {
        if is_merge(key) {
            for map in merged(value) {
                mapping(reader, map, key_text, into);
            }
        } else if let Content::Scalar(word) = &key.target().content {
            let key = key_text(word);
            let value = reader.field(&key, |reader| read_value(reader, value));
            into.insert(key, value);
        }
    }
}

/// A key of the outermost mapping: the reference reads those as texts.
fn as_written(word: &Word) -> String {
    word.text.to_string()
}

/// A key further in as the reference prints it: `y` is the boolean true to YAML 1.1, `010` is 8.
fn resolved(word: &Word) -> String {
    match word.value {
        Scalar::Bool(value) => value.to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Unsigned(value) => value.to_string(),
        Scalar::Null | Scalar::Float(_) | Scalar::Text => word.text.to_string(),
    }
}

/// Any value as JSON.
pub(super) fn read_value(reader: &mut Reader, node: &Node) -> Value {
    match &node.target().content {
        Content::Map(_) => {
            let mut map = Map::new();
            mapping(reader, node, resolved, &mut map);
            Value::Object(map)
        }
        Content::List(items) => {
            let items = items.iter().enumerate();
            let read = |(index, item): (usize, &std::rc::Rc<Node>)| {
                reader.item(index, |reader| read_value(reader, item))
            };
            Value::Array(items.map(read).collect())
        }
        Content::Scalar(word) => match word.value {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Int(value) => Value::Number(value.into()),
            Scalar::Unsigned(value) => Value::Number(value.into()),
            Scalar::Float(value) => Number::from_f64(value).map_or_else(
                || {
                    let what = format!("{} has no JSON form", quoted(&word.text));
                    reader.warn(node.at, what, "it is sent as a text");
                    Value::String(word.text.to_string())
                },
                Value::Number,
            ),
            Scalar::Text => Value::String(word.text.to_string()),
        },
        // `target` never ends at an alias.
        Content::Alias(_) => Value::Null,
    }
}
