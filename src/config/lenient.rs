//! What the reference's YAML 1.1 parser takes and our 1.2 parser refuses: a tab right behind a
//! colon, a comment right behind a quote or bracket, and lines of a flow collection or of a quoted
//! text that begin left of what they are in.
//!
//! Such a text is changed in a way that makes no difference to its meaning, and parsed again. That
//! happens for each place, so that a text is given up that has hundreds of them; tabs behind colons,
//! of which somebody may have many, are changed together.

use std::{borrow::Cow, collections::HashSet};

use saphyr_parser::{Marker, ScanError};

use crate::config::finding::Position;

/// Characters that may be parsed in vain before we give up: the work stays bounded.
const MOST_CHARACTERS: usize = 2 * 1024 * 1024;

/// A text that is being made acceptable.
#[derive(Debug)]
pub(super) struct Lenient<'t> {
    text: Cow<'t, str>,
    /// Lines with `shift` spaces in front.
    shifted: HashSet<usize>,
    /// More than anything is indented by.
    shift: usize,
    parsed: usize,
}

impl<'t> Lenient<'t> {
    /// Lines end with a line feed alone.
    pub(super) fn new(text: Cow<'t, str>) -> Self {
        Self {
            shift: text.lines().map(indentation).max().unwrap_or_default() + 1,
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
            self.shift
        } else {
            0
        }
    }

    /// Whether there were too many places to go on.
    pub(super) const fn is_exhausted(&self) -> bool {
        self.parsed > MOST_CHARACTERS
    }

    /// Changes the text so that this error does not come again. False when that cannot be done.
    pub(super) fn ease(&mut self, error: &ScanError) -> bool {
        // The place of an error in quotes is where they begin, wherever the parser has got to.
        let got_to = error.marker().index().max(self.text.len() / 2);
        self.parsed = self.parsed.saturating_add(got_to);
        if self.is_exhausted() {
            return false;
        }
        let line = error.marker().line();
        match error.info() {
            "':' must be followed by a valid YAML whitespace" => {
                self.space_for_tab(*error.marker()) && self.space_for_tabs_after(line)
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
        self.text
            .to_mut()
            .insert_str(start, &" ".repeat(self.shift));
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

    /// The same for the plain `key:` of each line behind that one, where no line can be part of a
    /// longer text: there a tab is not ours to change. Always true.
    fn space_for_tabs_after(&mut self, line: usize) -> bool {
        if self.text.contains(['|', '>']) || self.text.lines().any(has_open_quote) {
            return true;
        }
        let Some(start) = self.start_of(line + 1) else {
            return true;
        };
        let mut at = start;
        let mut tabs = Vec::new();
        for line in self.text.get(start..).unwrap_or_default().split('\n') {
            tabs.extend(tab_behind_key(line).map(|tab| at + tab));
            at += line.len() + 1;
        }
        for tab in tabs {
            self.text.to_mut().replace_range(tab..=tab, " ");
        }
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

/// At least as much as what begins on a line is indented by: a list in a list begins behind its
/// dash.
fn indentation(line: &str) -> usize {
    let opens = |character: &char| " \t-?:".contains(*character);
    line.chars().take_while(opens).count()
}

/// Whether a quoted text may go on in the next line.
fn has_open_quote(line: &str) -> bool {
    ['"', '\'']
        .iter()
        .any(|quote| line.matches(*quote).count() % 2 == 1)
}

/// Where the tab is that follows the colon of a plain key at the start of a line, in bytes.
fn tab_behind_key(line: &str) -> Option<usize> {
    let key = line.trim_start_matches([' ', '-']);
    let (name, rest) = key.split_once(':')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let fits = !name.is_empty() && name.chars().all(is_plain) && rest.starts_with('\t');
    fits.then(|| line.len() - rest.len())
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

    #[test]
    fn a_small_text_with_many_places_is_given_up_early_and_says_so() {
        let flow = |lines: usize| format!("a:\n  b: [{}c]", "x,\n".repeat(lines));
        assert!(yaml::read(&flow(500)).error.is_none());
        let error = yaml::read(&flow(1_700)).error.unwrap();
        assert!(error.what.contains("too many lines"), "{error:?}");
        assert!((501..1_700).contains(&error.at.line), "{error:?}");
        let quoted = format!("a:\n  b: 'c{}'", "x\n".repeat(2_500));
        let error = yaml::read(&quoted).error.unwrap();
        assert!(error.what.contains("too many lines"), "{error:?}");
    }

    #[test]
    fn tabs_behind_keys_are_changed_together_and_tabs_in_texts_are_not() {
        let tabs = "- key:\tv\n  other:\t\tw\n".repeat(10_000);
        let document = yaml::read(&tabs);
        assert!(document.error.is_none(), "{:?}", document.error);
        for (text, want) in [
            ("a:\tb\nc: |\n  d:\te", "d:\te\n"),
            ("a:\tb\nc: 'x\n  d:\te'", "x d:\te"),
            ("a:\tb\nc: \"d:\te\"", "d:\te"),
        ] {
            let root = yaml::read(text).root.unwrap();
            let Content::Map(entries) = &root.content else {
                panic!()
            };
            let Content::Scalar(word) = &entries[1].1.content else {
                panic!()
            };
            assert_eq!(&*word.text, want);
        }
    }

    #[test]
    fn what_is_in_lists_of_lists_is_moved_far_enough() {
        let document = yaml::read("- - - - a: [\nb,\nc]\n");
        assert!(document.error.is_none(), "{:?}", document.error);
    }
}
