//! What the reference's YAML 1.1 parser refuses and our 1.2 parser takes.
//!
//! The two differ in tabs, directives, one escape and some characters. The parser reports which
//! stretches of the text are scalars and flow collections; the rest is looked at here.

use saphyr_parser::{ScalarStyle, Span};

use crate::config::{finding::Position, yaml::Problem};

/// A part of the text that the parser has named; in characters, the end not included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    start: usize,
    end: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    DoubleQuoted,
    OtherScalar,
    /// A list or mapping; a flow one when its last character closes it.
    Collection,
}

impl Stretch {
    pub(super) fn scalar(span: Span, style: ScalarStyle) -> Self {
        Self {
            start: span.start.index(),
            end: span.end.index(),
            kind: match style {
                ScalarStyle::Plain => Kind::Plain,
                ScalarStyle::DoubleQuoted => Kind::DoubleQuoted,
                _ => Kind::OtherScalar,
            },
        }
    }

    pub(super) fn collection(start: Span, end: Span) -> Self {
        Self {
            start: start.start.index(),
            end: end.end.index(),
            kind: Kind::Collection,
        }
    }
}

/// The first character that no rule file may hold.
pub(super) fn unreadable_character(text: &str) -> Option<Problem> {
    let (mut line, mut column) = (1, 0);
    for character in text.chars() {
        column += 1;
        let what = match character {
            '\n' => {
                (line, column) = (line + 1, 0);
                continue;
            }
            '\t' | '\r' => continue,
            // Line breaks in YAML 1.1, none in 1.2, and invisible: refused on purpose.
            '\u{85}' | '\u{2028}' | '\u{2029}' => "a line break that is none everywhere",
            '\u{feff}' => "a byte order mark inside the text",
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => {
                "a control character"
            }
            _ => continue,
        };
        return Some(Problem {
            at: Position { line, column },
            what: format!("U+{:04X} is {what}", u32::from(character)),
        });
    }
    None
}

/// The first place that the reference's parser does not take.
pub(super) fn check(text: &str, stretches: &[Stretch], end: Option<Position>) -> Option<Problem> {
    if !text.contains(['\t', '%']) && !text.contains("\\/") && !text.contains("...") {
        return None;
    }
    let text: Vec<char> = text.chars().collect();
    let mut covers = vec![Cover::Open; text.len()];
    for stretch in stretches {
        stretch.paint(&text, &mut covers);
    }
    let mut seen = false;
    let mut start = 0;
    for (number, line) in text
        .split_inclusive(|character| *character == '\n')
        .enumerate()
    {
        let covers = &covers[start..start + line.len()];
        let line = Line {
            text: line,
            covers,
            is_first: !seen,
        };
        if end.is_some_and(|end| number + 1 > end.line) || line.ends_document() {
            break;
        }
        if let Some((column, what)) = line.problem() {
            return Some(Problem {
                at: Position {
                    line: number + 1,
                    column: column + 1,
                },
                what: what.to_owned(),
            });
        }
        seen |= covers.iter().any(|cover| *cover != Cover::Open);
        start += line.text.len();
    }
    None
}

/// What a character is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    /// Indentation, indicators, comments, directives.
    Open,
    /// Between `[` and `]` or `{` and `}`.
    Flow,
    Plain,
    DoubleQuoted,
    OtherScalar,
}

impl Stretch {
    /// Scalars come before the collections that they are in, and keep their places.
    fn paint(self, text: &[char], covers: &mut [Cover]) {
        let range = self.start..self.end.min(text.len());
        let cover = match self.kind {
            Kind::Plain => Cover::Plain,
            Kind::DoubleQuoted => Cover::DoubleQuoted,
            Kind::OtherScalar => Cover::OtherScalar,
            Kind::Collection => {
                let last = range.end.checked_sub(1).and_then(|last| text.get(last));
                if !matches!(last, Some(']' | '}')) {
                    return;
                }
                Cover::Flow
            }
        };
        if let Some(stretch) = covers.get_mut(range) {
            for place in stretch {
                if *place == Cover::Open {
                    *place = cover;
                }
            }
        }
    }
}

/// One line with its end.
struct Line<'t> {
    text: &'t [char],
    covers: &'t [Cover],
    /// Nothing but comments and directives came before.
    is_first: bool,
}

impl Line<'_> {
    fn problem(&self) -> Option<(usize, &'static str)> {
        self.directive()
            .or_else(|| self.tab())
            .or_else(|| self.escape())
    }

    /// `%` at the start of a line; also `...` before anything else.
    fn directive(&self) -> Option<(usize, &'static str)> {
        if matches!(
            self.covers.first()?,
            Cover::DoubleQuoted | Cover::OtherScalar
        ) {
            return None;
        }
        let text: String = self.text.iter().collect();
        if self.is_first && text.trim_end() == "..." {
            return Some((0, "a document ends before it has begun"));
        }
        if !text.starts_with('%') {
            return None;
        }
        let mut words = text.split_whitespace();
        match (words.next(), words.next()) {
            (Some("%YAML"), Some("1.1")) | (Some("%TAG"), _) => None,
            (Some("%YAML"), _) => Some((0, "a YAML version other than 1.1")),
            _ => Some((0, "an unknown directive")),
        }
    }

    /// `---`, `...` or a known directive after the beginning: what follows is not read.
    fn ends_document(&self) -> bool {
        let text: String = self.text.iter().collect();
        let word = text.split_whitespace().next();
        !self.is_first
            && self.covers.first() == Some(&Cover::Open)
            && matches!(word, Some("---" | "..." | "%YAML" | "%TAG"))
    }

    /// A tab where a key may stand: at the start of a line, or after `-`, `?` and a lone `:`.
    fn tab(&self) -> Option<(usize, &'static str)> {
        let mut before = None;
        for (column, (character, cover)) in self.text.iter().zip(self.covers).enumerate() {
            match (character, cover) {
                ('\t', Cover::Open) => {
                    if matches!(before, None | Some('-' | '?')) {
                        return Some((column, "a tab where only spaces may stand"));
                    }
                }
                ('\t', Cover::Plain) if column == 0 => {
                    return Some((column, "a tab where only spaces may stand"));
                }
                ('#', Cover::Open) => return None,
                (' ', _) => {}
                (_, Cover::Open) => before = Some(*character),
                _ => before = Some('x'),
            }
        }
        None
    }

    /// `\/` in a text in double quotes.
    fn escape(&self) -> Option<(usize, &'static str)> {
        let mut escaped = false;
        for (column, (character, cover)) in self.text.iter().zip(self.covers).enumerate() {
            if *cover != Cover::DoubleQuoted {
                escaped = false;
            } else if escaped && *character == '/' {
                return Some((column, "the escape \\/ is unknown"));
            } else {
                escaped = *character == '\\' && !escaped;
            }
        }
        None
    }
}
