//! Lines of a file, with their numbers, none longer than a bound.

use std::io::{self, BufRead, Read as _};

use crate::trace::error::LineError;

/// A longer line is passed over: memory stays bounded.
pub const MAX_LINE: u64 = 1024 * 1024;

/// Reads line by line.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    number: u64,
    position: u64,
    /// The next line is the one that `buffer` has already.
    again: bool,
}

/// One line.
#[derive(Debug)]
pub struct Line<'a> {
    /// From 1.
    pub number: u64,
    /// Without the line break; too long otherwise.
    pub bytes: Result<&'a [u8], LineError>,
}

impl<R: BufRead> Lines<R> {
    /// Begins at the first line.
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            number: 0,
            position: 0,
            again: false,
        }
    }

    /// Gives the present line once more.
    pub fn again(&mut self) {
        self.again = self.number > 0;
    }

    /// The next line; none at the end. The last one needs no line break.
    pub fn read(&mut self) -> io::Result<Option<Line<'_>>> {
        if !std::mem::take(&mut self.again) && !self.fetch()? {
            return Ok(None);
        }
        let bytes = if count(self.buffer.len()) > MAX_LINE && !self.buffer.ends_with(b"\n") {
            Err(LineError::TooLong(MAX_LINE))
        } else {
            let line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
            Ok(line.strip_suffix(b"\r").unwrap_or(line))
        };
        Ok(Some(Line {
            number: self.number,
            bytes,
        }))
    }

    /// Reads the next line, or enough of it to see that it is too long; false at the end.
    fn fetch(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        let mut limited = (&mut self.reader).take(MAX_LINE + 1);
        let read = limited.read_until(b'\n', &mut self.buffer)?;
        if read == 0 {
            return Ok(false);
        }
        self.number += 1;
        self.position += count(read);
        if count(read) > MAX_LINE && !self.buffer.ends_with(b"\n") {
            self.position += count(self.reader.skip_until(b'\n')?);
        }
        Ok(true)
    }

    /// Bytes that were read.
    pub fn position(&self) -> u64 {
        self.position
    }
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_long_ones_passed_over() {
        let long = "x".repeat(usize::try_from(MAX_LINE).unwrap() + 1);
        let just = "y".repeat(usize::try_from(MAX_LINE).unwrap());
        let text = format!("a\r\n\n{long}\nb\n{just}\nlast");
        let mut lines = Lines::new(text.as_bytes());
        let mut seen = Vec::new();
        while let Some(Line { number, bytes }) = lines.read().unwrap() {
            seen.push((number, bytes.map(<[u8]>::len)));
        }
        let want = [
            (1, Ok(1)),
            (2, Ok(0)),
            (3, Err(LineError::TooLong(MAX_LINE))),
            (4, Ok(1)),
            (5, Ok(just.len())),
            (6, Ok(4)),
        ];
        assert_eq!(seen, want);
        assert_eq!(lines.position(), count(text.len()));
    }
}
