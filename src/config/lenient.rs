//! What the reference's YAML 1.1 parser takes and our 1.2 parser refuses: a tab right behind a
//! colon, a comment right behind a quote or bracket, and lines of a flow collection or of a quoted
//! text that begin left of what they are in.
//!
//! Such a text is changed in a way that makes no difference to its meaning, and parsed again.

use std::{borrow::Cow, collections::HashSet};

use saphyr_parser::{Marker, ScanError};

use crate::config::finding::Position;

/// Bytes that may be parsed again before we give up: the work stays bounded.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// Spaces in front of a line; more than anything is indented by.
const SHIFT: usize = 250;

/// A text that is being made acceptable.
#[derive(Debug)]
pub(super) struct Lenient<'t> {
    text: Cow<'t, str>,
    /// Lines with [`SHIFT`] spaces in front.
    shifted: HashSet<usize>,
    parsed: usize,
}

impl<'t> Lenient<'t> {
    /// Lines end with a line feed alone.
    pub(super) fn new(text: Cow<'t, str>) -> Self {
        Self {
            text,
            shifted: HashSet::new(),
            parsed: 0,
        }
    }

    /// The text as it is now.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The place in the text as it was.
    pub(super) fn position(&self, marker: Marker) -> Position {
        let shift = self.shift_of(marker.line());
        Position {
            line: marker.line(),
            column: (marker.col() + 1).saturating_sub(shift).max(1),
        }
    }

    /// How many spaces were put in front of a line.
    pub(super) fn shift_of(&self, line: usize) -> usize {
        if self.shifted.contains(&line) {
            SHIFT
        } else {
            0
        }
    }

    /// Changes the text so that this error does not come again. False when that cannot be done.
    pub(super) fn ease(&mut self, error: &ScanError) -> bool {
        self.parsed = self.parsed.saturating_add(self.text.len());
        if self.parsed > MOST_BYTES {
            return false;
        }
        let line = error.marker().line();
        match error.info() {
            "':' must be followed by a valid YAML whitespace" => {
                self.space_for_tab(*error.marker())
            }
            "comments must be separated from other tokens by whitespace" => {
                self.space_before_comment(*error.marker())
            }
            // Whether a tab may stand there is looked at later.
            "invalid indentation"
            | "invalid indentation in flow construct"
            | "tabs disallowed within this context (block indentation)" => self.shift(line),
            // The place is where the quotes begin; the line that is too far left comes later.
            "invalid indentation in quoted scalar" => {
                let mut after = (line + 1)..;
                after
                    .find(|line| !self.shifted.contains(line))
                    .is_some_and(|line| self.shift(line))
            }
            _ => false,
        }
    }

    fn shift(&mut self, line: usize) -> bool {
        let Some(start) = self.start_of(line).filter(|_| self.shifted.insert(line)) else {
            return false;
        };
        self.text.to_mut().insert_str(start, &" ".repeat(SHIFT));
        true
    }

    /// The mark is behind the tabs that follow the colon.
    fn space_for_tab(&mut self, marker: Marker) -> bool {
        let Some(start) = self.start_of(marker.line()) else {
            return false;
        };
        let line = self.text.get(start..).unwrap_or_default();
        let before = line.char_indices().take(marker.col());
        let tabs = before.collect::<Vec<_>>().into_iter().rev();
        let first = tabs.take_while(|(_, character)| *character == '\t').last();
        let Some((at, _)) = first else { return false };
        self.text
            .to_mut()
            .replace_range(start + at..=start + at, " ");
        true
    }

    /// The mark is at the `#` or right before it.
    fn space_before_comment(&mut self, marker: Marker) -> bool {
        let Some(start) = self.start_of(marker.line()) else {
            return false;
        };
        let line = self.text.get(start..).unwrap_or_default();
        let rest = line.char_indices().skip(marker.col());
        let Some((at, '#')) = rest.take(1).next() else {
            return false;
        };
        self.text.to_mut().insert(start + at, ' ');
        true
    }

    /// Where a line begins, in bytes.
    fn start_of(&self, line: usize) -> Option<usize> {
        match line {
            1 => Some(0),
            _ => self
                .text
                .match_indices('\n')
                .nth(line.checked_sub(2)?)
                .map(|(at, _)| at + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::yaml::{self, Content};

    #[test]
    fn what_yaml_1_1_takes_is_taken_and_keeps_its_places() {
        for text in [
            "a:\tb",
            "a: 'b'# c\nd: [e]# f",
            "a:\t\tb\nc:\td",
            "a: [\n{b: c},\nd\n]",
            "a:\n  b: [c,\nd]",
            "a:\n  b: 'c\nd'",
            "a:\n  b: [\n\tc,\n\td]",
            "a:\n  b: \"c\n\n\nd\ne\"\n  f: g",
        ] {
            let document = yaml::read(text);
            assert!(document.error.is_none(), "{text:?}: {:?}", document.error);
        }
        let root = yaml::read("a: [\nb]").root.unwrap();
        let Content::Map(entries) = &root.content else {
            panic!()
        };
        let Content::List(items) = &entries[0].1.content else {
            panic!()
        };
        assert_eq!((items[0].at.line, items[0].at.column), (2, 1));
    }

    #[test]
    fn a_text_that_cannot_be_helped_is_given_up() {
        let flow = format!("a:\n  b: [{}\n", "x,\n".repeat(20_000));
        assert!(yaml::read(&flow).error.is_some());
    }
}
