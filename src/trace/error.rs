//! Why a trace, or a line of it, is not what it should be.

use std::io;

use crate::model::notation::NotationError;

/// Why a trace cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading failed.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The first line of a table does not name its columns.
    #[error("line 1: {0}")]
    Header(LineError),
    /// A column that is needed is not there.
    #[error("there is no column {wanted}; the first line names: {found}")]
    NoColumn {
        /// What was looked for.
        wanted: String,
        /// What is there.
        found: String,
    },
}

/// Why one line is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Longer than so many bytes.
    #[error("longer than {0} bytes")]
    TooLong(u64),
    /// Not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// No object of JSON.
    #[error("no JSON object: {0}")]
    NotJson(String),
    /// A row with more or fewer fields than the first.
    #[error("{found} fields where the first line has {wanted}")]
    Fields {
        /// In this row.
        found: usize,
        /// In the first.
        wanted: usize,
    },
    /// A field is not there, or empty.
    #[error("no {0}")]
    Missing(String),
    /// A field does not hold what it should.
    #[error("{field}: {text:?} is {not}")]
    Wrong {
        /// Its name.
        field: String,
        /// What it holds, cut when long.
        text: String,
        /// What it should hold.
        not: &'static str,
    },
    /// The engine takes no such request.
    #[error("{0}")]
    Undecided(String),
    /// Descriptors that cannot be read.
    #[error("{field}: {error}")]
    Descriptors {
        /// The field's name.
        field: String,
        /// Why.
        error: NotationError,
    },
}

impl LineError {
    pub(super) fn wrong(field: &str, text: &str, not: &'static str) -> Self {
        Self::Wrong {
            field: field.to_owned(),
            text: shortened(text),
            not,
        }
    }
}

/// The beginning of a text, enough to recognise it.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
