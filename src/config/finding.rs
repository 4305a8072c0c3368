//! What is wrong with a rule file, where, and what to do about it.

use std::{fmt, sync::Arc};

/// Whether a finding refuses the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file is taken; what it says is probably not what was meant.
    Warning,
}

/// One remark on a rule file. Shown as `file:line:column: error: path: what; what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it refuses the file.
    pub severity: Severity,
    /// Name of the file as it was given or found.
    pub file: Arc<str>,
    /// Place in the file; 0:0 when the file as a whole is meant.
    pub at: Position,
    /// Path of the field, such as `descriptors[2].rate_limit.unit`; empty for the file.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

/// A place in a file, both from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column in characters.
    pub column: usize,
}

/// Something that is no YAML, or more than we take.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Position,
    pub(super) what: String,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.at.line > 0 {
            write!(f, ":{}:{}", self.at.line, self.at.column)?;
        }
        write!(f, ": {}: ", self.severity)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.what)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// A text as a finding quotes it: in quotes, control characters escaped, cut when long.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}
