//! What happened, as a file says it: one line, one request.
//!
//! A line ([`lines`]) is an object of JSON or a row of a table ([`row`]); a [`mapping`] says which
//! of its fields make up the time, the descriptors and the cost; the result is a [`record`], which
//! [`order`] puts into the order of time. All of it reads on and on in bounded memory, and a line
//! that cannot be read is an answer ([`LineError`]) and not the end.

mod error;
pub mod lines;
pub mod mapping;
pub mod order;
pub mod record;
pub mod row;
pub mod template;
pub mod time;

use std::io::BufRead;

use crate::trace::{
    lines::{Line, Lines},
    mapping::Mapping,
    record::Record,
    row::{Rows, Table},
};

pub use self::error::{LineError, TraceError};

/// How the lines of a trace are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An object of JSON on each line.
    Json,
    /// Comma separated values; the first line names the columns.
    Csv,
}

/// A trace being read.
#[derive(Debug)]
pub struct Trace<R> {
    lines: Lines<R>,
    mapping: Mapping,
    rows: Rows,
}

/// What became of a line.
#[derive(Debug)]
pub struct Step {
    /// Its number, from 1.
    pub line: u64,
    /// Whether it is a request.
    pub read: Result<(), LineError>,
}

impl<R: BufRead> Trace<R> {
    /// Begins to read. Without a `format` it is JSON when the first byte that is no space is `{`.
    pub fn new(reader: R, format: Option<Format>, mapping: Mapping) -> Result<Self, TraceError> {
        let mut lines = Lines::new(reader);
        let first = match lines.read()? {
            Some(Line { bytes, .. }) => bytes.unwrap_or_default(),
            None => b"{",
        };
        let looks_like = if first.trim_ascii_start().starts_with(b"{") {
            Format::Json
        } else {
            Format::Csv
        };
        let rows = match format.unwrap_or(looks_like) {
            Format::Json => {
                lines.again();
                Rows::Json
            }
            Format::Csv => {
                let table = Table::new(first, mapping.names()).map_err(TraceError::Header)?;
                mapping.check_columns(&table)?;
                Rows::Csv(Box::new(table))
            }
        };
        Ok(Self {
            lines,
            mapping,
            rows,
        })
    }

    /// Reads the next line into `record`; none at the end. A line of white space is left out. The
    /// record has no descriptors when the line lacks a field for each that the mapping would make.
    pub fn read(&mut self, record: &mut Record) -> Result<Option<Step>, TraceError> {
        while let Some(Line { number, bytes }) = self.lines.read()? {
            let bytes = match bytes {
                Ok(bytes) if bytes.trim_ascii().is_empty() => continue,
                bytes => bytes,
            };
            let row = bytes.and_then(|bytes| self.rows.read(bytes, self.mapping.names()));
            let read = row.and_then(|row| self.mapping.fill(&row, record));
            record.line = number;
            return Ok(Some(Step { line: number, read }));
        }
        Ok(None)
    }

    /// Bytes that were read.
    pub fn position(&self) -> u64 {
        self.lines.position()
    }
}
