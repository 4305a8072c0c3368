//! `KEY=VALUE`: an entry of a descriptor, as some settings name one.

use crate::config::{finding::quoted, reader::Reader, yaml::Node};

/// Key and value; the value may be empty and may have a `=` in it.
pub(super) fn key_and_value(reader: &mut Reader, node: &Node) -> Option<(Box<str>, Box<str>)> {
    let text = reader.words(node)?;
    match text.value.split_once('=') {
        Some((key, value)) if !key.is_empty() => Some((key.into(), value.into())),
        _ => {
            let what = format!("{} is no key and value", quoted(&text.value));
            let advice = "write them with `=` between, such as op=release";
            reader.error(text.at, what, advice);
            None
        }
    }
}
