//! Case files in YAML, as JSON values: a reader for tests only, for files that are known to be fine.

use saphyr_parser::{Event, EventReceiver, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Reads the first document.
pub(crate) fn read(text: &str) -> Value {
    let mut tree = Tree::default();
    Parser::new_from_str(text).load(&mut tree, false).unwrap();
    tree.root.unwrap()
}

#[derive(Default)]
struct Tree {
    open: Vec<Open>,
    root: Option<Value>,
}

enum Open {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

impl EventReceiver<'_> for Tree {
    fn on_event(&mut self, event: Event<'_>) {
        match event {
            Event::SequenceStart(..) => self.open.push(Open::List(Vec::new())),
            Event::MappingStart(..) => self.open.push(Open::Map(Map::new(), None)),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop().unwrap() {
                Open::List(items) => self.place(Value::Array(items)),
                Open::Map(map, _) => self.place(Value::Object(map)),
            },
            Event::Scalar(text, ScalarStyle::Plain, ..) => {
                let typed = serde_json::from_str(&text).ok();
                let typed = typed.filter(|value: &Value| !value.is_string());
                self.place(typed.unwrap_or_else(|| Value::String(text.into_owned())));
            }
            Event::Scalar(text, ..) => self.place(Value::String(text.into_owned())),
            Event::Alias(_) => panic!("no aliases in case files"),
            _ => {}
        }
    }
}

impl Tree {
    fn place(&mut self, value: Value) {
        match self.open.last_mut() {
            Some(Open::List(items)) => items.push(value),
            Some(Open::Map(map, key)) => match key.take() {
                Some(key) => {
                    map.insert(key, value);
                }
                None => *key = Some(value.as_str().unwrap().to_owned()),
            },
            None => self.root = Some(value),
        }
    }
}
