//! Descriptors made of the fields of a line: `remote_address={client|ip},path={path}`.

use std::borrow::Cow;

use crate::{
    model::notation::{self, NotationError},
    trace::row::{Field, Row},
};

/// A descriptor with fields of the line in its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    entries: Vec<(String, Vec<Part>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// Index of the field, and what is done with its text.
    Field(usize, Option<Filter>),
}

/// What is done with the text of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    /// An address without its port: `10.0.0.1:80`, `[::1]:80`.
    Ip,
    /// A path without its query.
    Path,
    /// The first of a list with commas.
    First,
    /// The last of a list with commas: in `x-forwarded-for` the one that the nearest proxy added.
    Last,
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Not even descriptors.
    #[error(transparent)]
    Notation(#[from] NotationError),
    /// `{` without `}`, or the other way round.
    #[error("{0:?}: a brace without its partner; write {{{{ or }}}} for a brace itself")]
    Brace(String),
    /// `{field|filter}` with a filter that is not there.
    #[error("there is no filter {0:?}; known: ip, path, first, last")]
    Filter(String),
    /// No descriptor at all.
    #[error("no descriptor; write key={{field}}")]
    Empty,
}

impl Template {
    /// Reads descriptors in the notation of [`notation`] with `{field}` or `{field|filter}` in
    /// their values; `{{` and `}}` are braces. `name` gives each field its index.
    pub fn parse(
        text: &str,
        mut name: impl FnMut(&str) -> usize,
    ) -> Result<Vec<Self>, TemplateError> {
        let mut templates = Vec::new();
        let mut entries = Vec::new();
        for piece in notation::entries(text) {
            let piece = piece?;
            entries.push((piece.key.into_owned(), parts(&piece.value, &mut name)?));
            if piece.last {
                templates.push(Self {
                    entries: std::mem::take(&mut entries),
                });
            }
        }
        if templates.is_empty() {
            return Err(TemplateError::Empty);
        }
        Ok(templates)
    }

    /// The fields it needs.
    pub fn fields(&self) -> impl Iterator<Item = usize> {
        let parts = self.entries.iter().flat_map(|(_, parts)| parts);
        parts.filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field(index, _) => Some(*index),
        })
    }

    /// Calls `entry` with key and value of each entry; false, having called it for some of them,
    /// when the line lacks a field. As in Envoy a descriptor is whole or not there at all.
    pub fn fill(&self, row: &Row<'_>, mut entry: impl FnMut(&str, &str)) -> bool {
        self.entries.iter().all(|(key, parts)| {
            let value = match parts.as_slice() {
                [part] => part.text(row),
                parts => {
                    let texts = parts.iter().map(|part| part.text(row));
                    texts.collect::<Option<String>>().map(Cow::Owned)
                }
            };
            value.map(|value| entry(key, &value)).is_some()
        })
    }
}

impl Part {
    fn text<'a>(&'a self, row: &'a Row<'_>) -> Option<Cow<'a, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Field(index, filter) => {
                let text = row.get(*index)?.as_ref().and_then(Field::text)?;
                let Some(filter) = filter else {
                    return Some(text);
                };
                match text {
                    Cow::Borrowed(text) => Some(Cow::Borrowed(filter.apply(text))),
                    Cow::Owned(text) => Some(Cow::Owned(filter.apply(&text).to_owned())),
                }
            }
        }
    }
}

impl Filter {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "ip" => Some(Self::Ip),
            "path" => Some(Self::Path),
            "first" => Some(Self::First),
            "last" => Some(Self::Last),
            _ => None,
        }
    }

    fn apply(self, text: &str) -> &str {
        match self {
            Self::Ip => host(text),
            Self::Path => text.split('?').next().unwrap_or(text),
            Self::First => text.split(',').next().unwrap_or(text).trim(),
            Self::Last => text.rsplit(',').next().unwrap_or(text).trim(),
        }
    }
}

/// The address of `address:port` and `[address]:port`; an address alone stays.
fn host(text: &str) -> &str {
    if let Some((address, _)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match text.split_once(':') {
        Some((address, port)) if !port.contains(':') => address,
        _ => text,
    }
}

/// Splits a value into texts and fields.
fn parts(value: &str, name: &mut impl FnMut(&str) -> usize) -> Result<Vec<Part>, TemplateError> {
    let unpaired = || TemplateError::Brace(value.to_owned());
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = value;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        let (field, after) = after.split_once('}').ok_or_else(unpaired)?;
        if brace == "}" || field.is_empty() || field.contains('{') {
            return Err(unpaired());
        }
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        let (field, filter) = match field.split_once('|') {
            None => (field, None),
            Some((field, filter)) => {
                let unknown = || TemplateError::Filter(filter.to_owned());
                (field, Some(Filter::parse(filter).ok_or_else(unknown)?))
            }
        };
        parts.push(Part::Field(name(field), filter));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() || parts.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptors that `text` makes of a row with the fields `a` and `b`.
    fn filled(text: &str, a: Option<&str>, b: Option<&str>) -> Vec<Option<String>> {
        let index = |name: &str| usize::from(name == "b");
        let row: Row<'_> = [a.map(Field::Text), b.map(Field::Text)]
            .into_iter()
            .collect();
        let templates = Template::parse(text, index).unwrap();
        let fill = |template: &Template| {
            let mut shown = String::new();
            let whole = template.fill(&row, |key, value| {
                shown.extend([key, "=", value, ";"]);
            });
            whole.then_some(shown)
        };
        templates.iter().map(fill).collect()
    }

    #[test]
    fn fields_fill_values() {
        let one = |text: &str| filled(text, Some("x"), Some("y"));
        assert_eq!(one("k={a}"), [Some("k=x;".to_owned())]);
        assert_eq!(one("k=1-{a}.{b}!"), [Some("k=1-x.y!;".to_owned())]);
        assert_eq!(one("k={{a}}"), [Some("k={a};".to_owned())]);
        assert_eq!(one("k="), [Some("k=;".to_owned())]);
        assert_eq!(
            one("k={a},l={b};m={b}"),
            [Some("k=x;l=y;".to_owned()), Some("m=y;".to_owned())]
        );
    }

    #[test]
    fn a_descriptor_without_one_of_its_fields_is_left_out() {
        let missing = filled("k={a},l={b};m={a}", Some("x"), Some("-"));
        assert_eq!(missing, [None, Some("m=x;".to_owned())]);
    }

    #[test]
    fn filters_take_a_part() {
        let of = |filter: &str, text: &str| filled(&format!("k={{a|{filter}}}"), Some(text), None);
        for (filter, text, want) in [
            ("ip", "10.0.0.1:4321", "10.0.0.1"),
            ("ip", "10.0.0.1", "10.0.0.1"),
            ("ip", "[2001:db8::1]:443", "2001:db8::1"),
            ("ip", "2001:db8::1", "2001:db8::1"),
            ("path", "/a/b?c=d?e", "/a/b"),
            ("first", "1.1.1.1, 2.2.2.2", "1.1.1.1"),
            ("last", "1.1.1.1, 2.2.2.2", "2.2.2.2"),
        ] {
            assert_eq!(
                of(filter, text),
                [Some(format!("k={want};"))],
                "{filter} {text}"
            );
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| Template::parse(text, |_| 0).unwrap_err();
        assert_eq!(error("k={a"), TemplateError::Brace("{a".to_owned()));
        assert_eq!(error("k=a}"), TemplateError::Brace("a}".to_owned()));
        assert_eq!(error("k={}"), TemplateError::Brace("{}".to_owned()));
        assert_eq!(
            error("k={a|upper}"),
            TemplateError::Filter("upper".to_owned())
        );
        assert_eq!(error(""), TemplateError::Empty);
        assert!(matches!(error("{a}"), TemplateError::Notation(_)));
    }
}
