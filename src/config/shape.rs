//! Which fields may stand where, and what a field may hold: what is refused before types are
//! looked at.
//!
//! The reference service checks a file as a bag of known names: a known name may stand anywhere,
//! and is ignored where it means nothing. Such files are taken with a warning; our own fields may
//! stand only where they belong.

use std::collections::{HashMap, HashSet};

use crate::config::{
    finding::{Position, quoted},
    reader::{Reader, is_merge, merged},
    scalar::Scalar,
    yaml::{Content, Node},
};

/// Where a mapping stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The file.
    Root,
    /// An element of `descriptors:`.
    Descriptor,
    /// `rate_limit:`
    RateLimit,
    /// An element of `replaces:`.
    Replaces,
    /// Below a field that is ignored.
    Ignored,
}

/// A field of the rule language.
struct Field {
    name: &'static str,
    home: Place,
    /// Whether the reference service knows it.
    reference: bool,
    /// Where the mappings below it stand.
    below: Place,
}

const fn reference(name: &'static str, home: Place, below: Place) -> Field {
    Field {
        name,
        home,
        reference: true,
        below,
    }
}

const fn ours(name: &'static str, home: Place) -> Field {
    Field {
        name,
        home,
        reference: false,
        below: Place::Ignored,
    }
}

/// Every field outside our own blocks.
const FIELDS: [Field; 30] = {
    use Place::{Descriptor, Ignored, RateLimit, Replaces, Root};
    [
        reference("domain", Root, Ignored),
        reference("descriptors", Root, Descriptor),
        ours("stacking", Root),
        ours("on_store_failure", Root),
        ours("spread", Root),
        ours("unknown_key", Root),
        ours("answer", Root),
        reference("key", Descriptor, Ignored),
        reference("value", Descriptor, Ignored),
        reference("rate_limit", Descriptor, RateLimit),
        reference("descriptors", Descriptor, Descriptor),
        reference("shadow_mode", Descriptor, Ignored),
        reference("quota_mode", Descriptor, Ignored),
        reference("detailed_metric", Descriptor, Ignored),
        reference("value_to_metric", Descriptor, Ignored),
        reference("share_threshold", Descriptor, Ignored),
        reference("metadata", Descriptor, Ignored),
        ours("limits", Descriptor),
        ours("mask", Descriptor),
        ours("concurrency", Descriptor),
        ours("scope", Descriptor),
        ours("advertise", Descriptor),
        ours("request_limit", Descriptor),
        reference("unit", RateLimit, Ignored),
        reference("requests_per_unit", RateLimit, Ignored),
        reference("unlimited", RateLimit, Ignored),
        reference("name", RateLimit, Ignored),
        ours("unit_multiplier", RateLimit),
        reference("replaces", RateLimit, Replaces),
        reference("name", Replaces, Ignored),
    ]
};

/// Reports unknown, misplaced and repeated fields, and values that no field can hold.
pub(super) fn check(reader: &mut Reader, root: &Node) {
    match &root.target().content {
        Content::Map(_) => mapping(reader, root, Place::Root),
        _ => reader.wrong_type(root, "a mapping with `domain:` and `descriptors:`"),
    }
}

fn mapping(reader: &mut Reader, node: &Node, place: Place) {
    for (key, value) in effective(reader, node) {
        let Content::Scalar(word) = &key.target().content else {
            continue;
        };
        if word.value != Scalar::Text {
            let what = format!("the name of a field is a text, not {}", quoted(&word.text));
            reader.error(
                key.at,
                what,
                "put it in quotes if it is meant so, or remove it",
            );
            continue;
        }
        reader.field(&word.text, |reader| {
            field(reader, key, &word.text, value, place);
        });
    }
}

fn field(reader: &mut Reader, key: &Node, name: &str, value: &Node, place: Place) {
    let home = FIELDS
        .iter()
        .find(|field| field.name == name && field.home == place);
    let known = home.or_else(|| {
        FIELDS
            .iter()
            .find(|field| field.name == name && field.reference)
    });
    match (home, known) {
        (Some(field), _) if !field.reference => {}
        (Some(field), _) => holds(reader, value, field),
        (None, Some(field)) => {
            if place != Place::Ignored {
                let what = format!("{} means nothing here and is ignored", quoted(name));
                reader.warn(key.at, what, "move it to where it belongs");
            }
            let below = Field {
                below: Place::Ignored,
                ..*field
            };
            holds(reader, value, &below);
        }
        (None, None) => {
            let here = FIELDS.iter().filter(|field| field.home == place);
            let names: Vec<&str> = here.map(|field| field.name).collect();
            unknown(reader, key.at, name, &names);
        }
    }
}

/// Reports a field that nobody knows.
pub(super) fn unknown(reader: &mut Reader, at: Position, name: &str, names: &[&str]) {
    let what = format!("unknown field {}", quoted(name));
    let advice = match nearest(name, names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known here: {}", names.join(", ")),
    };
    reader.error(at, what, advice);
}

/// The name that was probably meant.
pub(super) fn nearest<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let distance = |other: &&&str| strsim::damerau_levenshtein(name, other);
    let near = names.iter().min_by_key(distance)?;
    let allowed = (near.len().min(name.len()) / 3).max(1);
    (distance(&near) <= allowed).then_some(*near)
}

/// What the reference service lets a field hold: nothing, a text, an integer of 64 bits, a
/// boolean, a list of mappings, a mapping.
fn holds(reader: &mut Reader, value: &Node, field: &Field) {
    // Free-form.
    if field.name == "metadata" {
        return;
    }
    match &value.target().content {
        Content::Scalar(word) => match word.value {
            Scalar::Unsigned(_) | Scalar::Float(_) => {
                let what = format!(
                    "{} is a number out of range or with a fraction",
                    quoted(&word.text)
                );
                reader.error(value.at, what, "put it in quotes if it is meant as a text");
            }
            Scalar::Null | Scalar::Bool(_) | Scalar::Int(_) | Scalar::Text => {}
        },
        Content::List(items) => {
            for (index, item) in items.iter().enumerate() {
                reader.item(index, |reader| match &item.target().content {
                    Content::Map(_) => mapping(reader, item, field.below),
                    _ => reader.wrong_type(item, "a mapping"),
                });
            }
        }
        Content::Map(_) | Content::Alias(_) => mapping(reader, value, field.below),
    }
}

/// The entries that count: merged ones included, of a repeated field the last.
fn effective<'n>(reader: &mut Reader, node: &'n Node) -> Vec<(&'n Node, &'n Node)> {
    let mut entries = HashMap::new();
    collect(reader, node.target(), &mut entries);
    let mut entries: Vec<_> = entries.into_values().collect();
    entries.sort_by_key(|(key, _)| key.at);
    entries
}

/// By text, and whether it is one: `yes` and `'yes'` are two keys.
type Entries<'n> = HashMap<(&'n str, bool), (&'n Node, &'n Node)>;

fn collect<'n>(reader: &mut Reader, node: &'n Node, found: &mut Entries<'n>) {
    let Content::Map(entries) = &node.content else {
        return;
    };
    let mut own = HashSet::new();
    for (key, value) in entries {
        if is_merge(key) {
            for map in merged(value) {
                collect(reader, map, found);
            }
        } else if let Content::Scalar(word) = &key.target().content {
            let name = (&*word.text, word.value == Scalar::Text);
            if !own.insert(name) {
                let what = format!("{} is given twice", quoted(&word.text));
                reader.warn(key.at, what, "the later one counts; remove the other");
            }
            found.insert(name, (key, value));
        }
    }
}
