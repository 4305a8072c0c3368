//! Reads typed values off the tree, collecting findings with their paths.

use std::{
    collections::HashSet,
    fmt::{Display, Write as _},
    rc::Rc,
    sync::Arc,
};

use crate::config::{
    finding::{Finding, Position, Severity, quoted},
    scalar::Scalar,
    yaml::{Content, Node},
};

/// A value and where it is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) at: Position,
}

/// Findings of one file, and the path of what is being read.
#[derive(Debug)]
pub(crate) struct Reader {
    file: Arc<str>,
    path: String,
    findings: Vec<Finding>,
    /// Where errors are already.
    errors: HashSet<(Position, String)>,
}

impl Reader {
    pub(super) fn new(file: Arc<str>) -> Self {
        Self {
            file,
            path: String::new(),
            findings: Vec::new(),
            errors: HashSet::new(),
        }
    }

    pub(super) fn file(&self) -> &Arc<str> {
        &self.file
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Reports an error at the present path. One error per place is enough: the first one tells
    /// the most.
    pub(crate) fn error(
        &mut self,
        at: Position,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) {
        if self.errors.insert((at, self.path.clone())) {
            self.report(Severity::Error, at, what.into(), advice.into());
        }
    }

    /// Reports a warning at the present path.
    pub(super) fn warn(
        &mut self,
        at: Position,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.report(Severity::Warning, at, what.into(), advice.into());
    }

    fn report(&mut self, severity: Severity, at: Position, what: String, advice: String) {
        self.findings.push(Finding {
            severity,
            file: Arc::clone(&self.file),
            at,
            path: self.path.clone(),
            what,
            advice,
        });
    }

    /// Runs `read` with a field's name at the end of the path.
    pub(super) fn field<T>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let separator = if self.path.is_empty() { "" } else { "." };
        self.within(format_args!("{separator}{name}"), read)
    }

    /// Runs `read` with an index at the end of the path.
    pub(crate) fn item<T>(&mut self, index: usize, read: impl FnOnce(&mut Self) -> T) -> T {
        self.within(format_args!("[{index}]"), read)
    }

    fn within<T>(&mut self, segment: impl Display, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        // Writing to a String cannot fail.
        let _ = write!(self.path, "{segment}");
        let value = read(self);
        self.path.truncate(length);
        value
    }

    /// A text: anything that is no list and no mapping; null is the empty text.
    pub(super) fn text(&mut self, node: &Node, slot: &mut Located<Box<str>>) {
        let Content::Scalar(word) = &node.target().content else {
            return self.wrong_type(node, "a text");
        };
        let value = match word.value {
            Scalar::Null => Box::default(),
            _ => word.text.clone(),
        };
        *slot = Located { value, at: node.at };
    }

    /// `true` or `false`; null is `false`.
    pub(super) fn boolean(&mut self, node: &Node, slot: &mut Located<bool>) {
        let value = match &node.target().content {
            Content::Scalar(word) => match word.value {
                Scalar::Bool(value) => Some(value),
                Scalar::Null => Some(false),
                _ => None,
            },
            _ => None,
        };
        match value {
            Some(value) => *slot = Located { value, at: node.at },
            None => self.wrong_type(node, "true or false"),
        }
    }

    /// A whole number from 0 to 4294967295; null is 0.
    pub(super) fn unsigned32(&mut self, node: &Node, slot: &mut Located<u32>) {
        let value = match &node.target().content {
            Content::Scalar(word) => match word.value {
                Scalar::Int(int) => u32::try_from(int).ok(),
                Scalar::Null => Some(0),
                // Only reached by a field that is given again later: elsewhere a number with a
                // fraction is refused by shape.
                Scalar::Float(float) => truncated(float),
                _ => None,
            },
            _ => None,
        };
        match value {
            Some(value) => *slot = Located { value, at: node.at },
            None => self.wrong_type(node, "a whole number from 0 to 4294967295, without quotes"),
        }
    }

    /// The items of a list; null is the empty list.
    pub(crate) fn list<'n>(&mut self, node: &'n Node) -> &'n [Rc<Node>] {
        match &node.target().content {
            Content::List(items) => items,
            Content::Scalar(word) if word.value == Scalar::Null => &[],
            _ => {
                self.wrong_type(node, "a list");
                &[]
            }
        }
    }

    /// Calls `read` for each field of a mapping in the order of the file, merged ones (`<<`)
    /// included; null is the empty mapping.
    pub(crate) fn fields(&mut self, node: &Node, read: &mut dyn FnMut(&mut Self, &str, &Node)) {
        let entries = match &node.target().content {
            Content::Map(entries) => entries,
            Content::Scalar(word) if word.value == Scalar::Null => return,
            _ => return self.wrong_type(node, "a mapping"),
        };
        for (key, value) in entries {
            if is_merge(key) {
                for map in merged(value) {
                    self.fields(map, read);
                }
            } else if let Content::Scalar(word) = &key.target().content {
                self.field(&word.text, |reader| read(reader, &word.text, value));
            }
        }
    }

    /// Control characters would end up in logs, metrics and headers.
    pub(super) fn check_text(&mut self, text: &Located<Box<str>>) {
        if text.value.chars().any(char::is_control) {
            let what = format!("{} has a control character", quoted(&text.value));
            self.error(text.at, what, "remove it");
        }
    }

    pub(super) fn wrong_type(&mut self, node: &Node, wanted: &str) {
        let found = shown(node);
        self.error(
            node.at,
            format!("{found} is not {wanted}"),
            format!("write {wanted}"),
        );
    }
}

/// A value as a finding names it.
pub(super) fn shown(node: &Node) -> String {
    match &node.target().content {
        Content::Scalar(word) if word.value == Scalar::Null => "nothing".to_owned(),
        Content::Scalar(word) => quoted(&word.text),
        Content::List(_) => "a list".to_owned(),
        Content::Map(_) | Content::Alias(_) => "a mapping".to_owned(),
    }
}

/// Whether a key is `<<`, which takes over the fields of another mapping.
pub(super) fn is_merge(key: &Node) -> bool {
    matches!(&key.content, Content::Scalar(word) if word.merge)
}

/// The mappings that a merge takes over, in the order in which they are laid over each other.
pub(super) fn merged(value: &Node) -> Vec<&Node> {
    match &value.target().content {
        Content::List(items) => items.iter().rev().map(|item| item.target()).collect(),
        _ => vec![value.target()],
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked before"
)]
fn truncated(float: f64) -> Option<u32> {
    let whole = float.trunc();
    (0.0..=f64::from(u32::MAX))
        .contains(&whole)
        .then_some(whole as u32)
}
