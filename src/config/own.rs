//! Reads the values of our own fields. They are stricter than the reference's: null is no value,
//! and an unknown name inside one of our mappings is an error.

use std::collections::HashSet;

use crate::{
    config::{
        reader::{Located, Reader, shown},
        scalar::Scalar,
        shape,
        units::{self, Rate},
        yaml::{Content, Node},
    },
    model::{request::Unit, time::Span},
};

impl Reader {
    /// Calls `read` for each field of one of our own mappings; a field that is not among `names`
    /// is an error.
    pub(crate) fn own_fields(
        &mut self,
        node: &Node,
        names: &[&str],
        read: &mut dyn FnMut(&mut Self, &str, &Node),
    ) {
        let mut seen = HashSet::new();
        self.fields(node, &mut |reader, name, value| {
            if !seen.insert(name.to_owned()) {
                reader.warn(value.at, "the field is given twice", "the later one counts");
            }
            if names.contains(&name) {
                read(reader, name, value);
            } else {
                shape::unknown(reader, value.at, name, names);
            }
        });
    }

    /// A text that is there; no control characters.
    pub(crate) fn words(&mut self, node: &Node) -> Option<Located<Box<str>>> {
        let mut text = Located::default();
        match &node.target().content {
            Content::Scalar(word) if word.value != Scalar::Null => self.text(node, &mut text),
            _ => self.wrong_type(node, "a text"),
        }
        self.check_text(&text);
        (!text.value.is_empty()).then_some(text)
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        node: &Node,
        choices: &[(&str, T)],
    ) -> Option<Located<T>> {
        let text = match &node.target().content {
            Content::Scalar(word) => &*word.text,
            _ => "",
        };
        if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(Located {
                value: *value,
                at: node.at,
            });
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let advice = match shape::nearest(text, &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("write {}", names.join(" or ")),
        };
        let what = format!("{} is not known here", shown(node));
        self.error(node.at, what, advice);
        None
    }

    /// One of the reference's units, in any letter case.
    pub(super) fn unit(&mut self, node: &Node) -> Option<Located<Unit>> {
        let mut text = Located::default();
        self.text(node, &mut text);
        let unit = units::unit(&text.value);
        if unit.is_none() {
            let what = format!("{} is no unit", shown(node));
            self.error(node.at, what, units::UNIT_ADVICE);
        }
        unit.map(|value| Located { value, at: node.at })
    }

    /// A whole number of 64 bits.
    pub(crate) fn count(&mut self, node: &Node) -> Option<Located<u64>> {
        let value = match &node.target().content {
            Content::Scalar(word) => match word.value {
                Scalar::Int(int) => u64::try_from(int).ok(),
                Scalar::Unsigned(value) => Some(value),
                _ => None,
            },
            _ => None,
        };
        if value.is_none() {
            self.wrong_type(node, "a whole number, without quotes");
        }
        value.map(|value| Located { value, at: node.at })
    }

    /// A length of time with its unit.
    pub(crate) fn span(&mut self, node: &Node) -> Option<Span> {
        self.measured(node, units::period, units::SPAN_ADVICE)
            .map(|period| period.value.span)
    }

    /// `N/PERIOD`
    pub(crate) fn rate(&mut self, node: &Node) -> Option<Located<Rate>> {
        self.measured(node, units::rate, units::RATE_ADVICE)
    }

    fn measured<T>(
        &mut self,
        node: &Node,
        read: impl FnOnce(&str) -> Result<T, String>,
        advice: &str,
    ) -> Option<Located<T>> {
        let value = match &node.target().content {
            Content::Scalar(word) if word.value != Scalar::Null => read(&word.text),
            _ => Err(format!("{} is no length of time", shown(node))),
        };
        match value {
            Ok(value) => Some(Located { value, at: node.at }),
            Err(what) => {
                self.error(node.at, what, advice);
                None
            }
        }
    }

    /// A number between two bounds.
    pub(crate) fn number(&mut self, node: &Node, least: f64, most: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "no bound is that large")]
        let value = match &node.target().content {
            Content::Scalar(word) => match word.value {
                Scalar::Int(int) => Some(int as f64),
                Scalar::Float(float) => Some(float),
                _ => None,
            },
            _ => None,
        };
        let value = value.filter(|value| (least..=most).contains(value));
        if value.is_none() {
            self.wrong_type(node, &format!("a number from {least} to {most}"));
        }
        value
    }

    /// `true` or `false`, one of our own fields.
    pub(crate) fn switch(&mut self, node: &Node) -> Option<Located<bool>> {
        let mut value = Located::default();
        self.boolean(node, &mut value);
        (value.at.line > 0).then_some(value)
    }
}
