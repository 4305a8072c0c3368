//! `answer:` of a file: the contract with clients.

use std::{rc::Rc, sync::Arc};

use serde_json::Value;

use crate::{
    config::{
        entry,
        finding::quoted,
        metadata,
        reader::Reader,
        yaml::{Content, Node},
    },
    rules::answer::{
        Answer, Body, Decimals, GlobalHeader, Headers, Ietf, IetfVersion, Messages, PLACEHOLDERS,
        PassHeaders, XRateLimit,
    },
};

/// The header families, in `headers:`.
const FAMILIES: [&str; 6] = [
    "reference",
    "x_ratelimit",
    "ietf",
    "retry_after",
    "retry_after_ms",
    "reason",
];

/// Reads the block.
pub(super) fn read(reader: &mut Reader, node: &Node) -> Answer {
    const NAMES: [&str; 6] = [
        "headers",
        "pass_headers",
        "body",
        "messages",
        "spread",
        "metadata",
    ];
    let mut answer = Answer::default();
    reader.own_fields(node, &NAMES, &mut |reader, name, value| match name {
        "headers" => answer.headers = headers(reader, value),
        "pass_headers" => answer.pass_headers = pass_headers(reader, value),
        "body" => answer.body = body(reader, value),
        "messages" => answer.messages = messages(reader, value),
        "spread" => answer.spread_permille = permille(reader.number(value, 0.0, 1.0)),
        "metadata" => answer.metadata = reader.switch(value).is_some_and(|on| on.value),
        _ => {}
    });
    answer
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 1000"
)]
fn permille(fraction: Option<f64>) -> u32 {
    (fraction.unwrap_or_default().clamp(0.0, 1.0) * 1_000.0).round() as u32
}

/// `always`, `never`, or a list of `KEY=VALUE`.
fn pass_headers(reader: &mut Reader, node: &Node) -> PassHeaders {
    if !matches!(node.target().content, Content::List(_)) {
        const CHOICES: [(&str, bool); 2] = [("always", true), ("never", false)];
        return match reader.choice(node, &CHOICES) {
            Some(choice) if !choice.value => PassHeaders::Never,
            _ => PassHeaders::Always,
        };
    }
    let items = reader.list(node).iter().enumerate();
    let read = |(index, item): (usize, &Rc<Node>)| {
        reader.item(index, |reader| entry::key_and_value(reader, item))
    };
    PassHeaders::With(items.filter_map(read).collect())
}

/// A list of families; one with options is a mapping: `- ietf: {version: 7, pk: true}`.
fn headers(reader: &mut Reader, node: &Node) -> Headers {
    let mut headers = Headers::default();
    let items: &[Rc<Node>] = reader.list(node);
    for (index, item) in items.iter().enumerate() {
        reader.item(index, |reader| match &item.target().content {
            Content::Map(_) => {
                reader.own_fields(
                    item,
                    &["x_ratelimit", "ietf"],
                    &mut |reader, name, value| match name {
                        "ietf" => headers.ietf = Some(ietf(reader, value)),
                        _ => headers.x_ratelimit = Some(x_ratelimit(reader, value)),
                    },
                );
            }
            _ => family(reader, item, &mut headers),
        });
    }
    headers
}

fn family(reader: &mut Reader, node: &Node, headers: &mut Headers) {
    let names = FAMILIES.map(|name| (name, name));
    let Some(name) = reader.choice(node, &names) else {
        return;
    };
    match name.value {
        "reference" => headers.reference = true,
        "x_ratelimit" => headers.x_ratelimit = Some(XRateLimit::default()),
        "ietf" => headers.ietf = Some(Ietf::default()),
        "retry_after" => headers.retry_after = true,
        "retry_after_ms" => headers.retry_after_ms = true,
        _ => headers.reason = true,
    }
}

fn x_ratelimit(reader: &mut Reader, node: &Node) -> XRateLimit {
    let mut family = XRateLimit::default();
    let names = [
        "used",
        "resource",
        "reset_after",
        "bucket",
        "scope",
        "global",
    ];
    reader.own_fields(node, &names, &mut |reader, name, value| match name {
        "reset_after" => {
            const CHOICES: [(&str, Option<Decimals>); 3] = [
                ("false", None),
                ("true", Some(Decimals::Millis)),
                ("short", Some(Decimals::Short)),
            ];
            if let Some(choice) = reader.choice(value, &CHOICES) {
                family.reset_after = choice.value;
            }
        }
        "global" => {
            const CHOICES: [(&str, GlobalHeader); 3] = [
                ("false", GlobalHeader::Off),
                ("true", GlobalHeader::Beside),
                ("alone", GlobalHeader::Alone),
            ];
            if let Some(choice) = reader.choice(value, &CHOICES) {
                family.global = choice.value;
            }
        }
        "used" => family.used = reader.switch(value).is_some_and(|on| on.value),
        "resource" => family.resource = reader.switch(value).is_some_and(|on| on.value),
        "bucket" => family.bucket = reader.switch(value).is_some_and(|on| on.value),
        _ => family.scope = reader.switch(value).is_some_and(|on| on.value),
    });
    family
}

fn ietf(reader: &mut Reader, node: &Node) -> Ietf {
    let mut family = Ietf::default();
    reader.own_fields(
        node,
        &["version", "pk"],
        &mut |reader, name, value| match name {
            "version" => {
                // `03` is an octal number to YAML 1.1; the text tells.
                const VERSIONS: [(&str, IetfVersion); 5] = [
                    ("03", IetfVersion::Draft03),
                    ("3", IetfVersion::Draft03),
                    ("07", IetfVersion::Draft07),
                    ("7", IetfVersion::Draft07),
                    ("10", IetfVersion::Draft10),
                ];
                if let Some(version) = reader.choice(value, &VERSIONS) {
                    family.version = version.value;
                }
            }
            _ => family.partition_key = reader.switch(value).is_some_and(|on| on.value),
        },
    );
    family
}

/// `none`, `problem_json`, or `{json: TEMPLATE}`.
fn body(reader: &mut Reader, node: &Node) -> Body {
    if !matches!(node.target().content, Content::Map(_)) {
        const CHOICES: [(&str, u8); 2] = [("none", 0), ("problem_json", 1)];
        return match reader.choice(node, &CHOICES) {
            Some(choice) if choice.value == 1 => Body::ProblemJson,
            _ => Body::None,
        };
    }
    let mut body = Body::None;
    reader.own_fields(node, &["json"], &mut |reader, _, value| {
        let template = metadata::read_value(reader, value);
        check_template(reader, value, &template);
        body = Body::Json(template);
    });
    body
}

fn check_template(reader: &mut Reader, node: &Node, template: &Value) {
    match template {
        Value::String(text) => check_placeholders(reader, node, text),
        Value::Array(items) => items
            .iter()
            .for_each(|item| check_template(reader, node, item)),
        Value::Object(map) => map
            .values()
            .for_each(|item| check_template(reader, node, item)),
        _ => {}
    }
}

/// `{word}` with a word that means nothing is sent as it is: probably a slip.
fn check_placeholders(reader: &mut Reader, node: &Node, text: &str) {
    for rest in text.split('{').skip(1) {
        let Some((word, _)) = rest.split_once('}') else {
            continue;
        };
        let is_word = word.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !word.is_empty();
        if is_word && !PLACEHOLDERS.contains(&word) {
            let what = format!("{} is no placeholder", quoted(word));
            reader.warn(
                node.at,
                what,
                format!("known are {}", PLACEHOLDERS.join(", ")),
            );
        }
    }
}

fn messages(reader: &mut Reader, node: &Node) -> Messages {
    let mut messages = Messages::default();
    reader.own_fields(
        node,
        &["by", "default", "texts"],
        &mut |reader, name, value| match name {
            "by" => messages.by = reader.words(value).map(|key| key.value),
            "default" => messages.default = message(reader, value),
            _ => reader.fields(value, &mut |reader, language, text| {
                let tag = language.replace('_', "-").to_ascii_lowercase();
                if !tag
                    .split('-')
                    .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()))
                {
                    let what = format!("{} is no language tag", quoted(language));
                    reader.error(text.at, what, "write one such as de or pt-br");
                }
                if let Some(text) = message(reader, text) {
                    messages.texts.insert(tag.into(), text);
                }
            }),
        },
    );
    if messages.by.is_none() && !messages.texts.is_empty() {
        reader.error(
            node.at,
            "nothing tells the language",
            "write `by:` with the key of the descriptor entry that has it",
        );
    }
    messages
}

fn message(reader: &mut Reader, node: &Node) -> Option<Arc<str>> {
    let text = reader.words(node)?;
    check_placeholders(reader, node, &text.value);
    Some(Arc::from(text.value))
}
