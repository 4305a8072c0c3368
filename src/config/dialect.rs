//! What the reference's YAML 1.1 parser refuses and our 1.2 parser takes.
//!
//! The two differ in tabs, directives, one escape and some characters. The parser reports which
//! stretches of the text are scalars and flow collections; the rest is looked at here.

use saphyr_parser::{Marker, ScalarStyle, Span};

use crate::config::{
    finding::{Position, Problem},
    lenient::Lenient,
};

/// A part of the text that the parser has named; in characters, the end not included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    start: usize,
    end: usize,
    kind: Kind,
    at: Marker,
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
            at: span.start,
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
            at: start.start,
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
pub(super) fn check(
    lenient: &Lenient<'_>,
    stretches: &[Stretch],
    end: Option<Position>,
) -> Option<Problem> {
    let text = lenient.text();
    if !text.contains(['\t', '%', '&']) && !text.contains("\\/") && !text.contains("...") {
        return None;
    }
    let text: Vec<char> = text.chars().collect();
    let mut covers = vec![Cover::Open; text.len()];
    for stretch in stretches {
        stretch.paint(&text, &mut covers);
    }
    if let Some(problem) = anchor_name(lenient, &text, stretches) {
        return Some(problem);
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
            start: lenient.shift_of(number + 1),
        };
        if end.is_some_and(|end| number + 1 > end.line) || line.ends_document() {
            break;
        }
        if let Some((column, what)) = line.problem() {
            return Some(Problem {
                at: lenient.position(Marker::new(0, number + 1, column)),
                what: what.to_owned(),
            });
        }
        seen |= covers.iter().any(|cover| *cover != Cover::Open);
        start += line.text.len();
    }
    None
}

/// Names of anchors have letters, digits, `-` and `_` only.
fn anchor_name(lenient: &Lenient<'_>, text: &[char], stretches: &[Stretch]) -> Option<Problem> {
    let wrong = stretches.iter().find(|stretch| {
        let mut rest = text.iter().skip(stretch.start);
        let is_end = |character: &&char| " \t\n,[]{}".contains(**character);
        let mut name = rest.by_ref().take_while(|character| !is_end(character));
        let fits =
            |character: &char| character.is_ascii_alphanumeric() || "-_".contains(*character);
        name.next() == Some(&'&') && !name.all(fits)
    })?;
    Some(Problem {
        at: lenient.position(wrong.at),
        what: "the name of an anchor has more than letters, digits, - and _".to_owned(),
    })
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
    /// Where the line as it was begins.
    start: usize,
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
                ('\t', Cover::Plain) if column == self.start => {
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

#[cfg(test)]
mod tests {
    use crate::config::yaml;

    fn problem(text: &str) -> Option<(usize, usize, String)> {
        let problem = yaml::read(text).error?;
        Some((problem.at.line, problem.at.column, problem.what))
    }

    #[test]
    fn what_yaml_1_1_refuses_is_refused_with_its_place() {
        for (text, line, column, words) in [
            ("\tdomain: d", 1, 1, "tab"),
            ("domain: d\n\t# c", 2, 1, "tab"),
            ("a:\n-\tb: c", 2, 2, "tab"),
            ("%YAML 1.2\n---\na: b", 1, 1, "YAML version"),
            ("a: b\n%FOO", 2, 1, "unknown directive"),
            ("...\na: b", 1, 1, "has begun"),
            ("a: \"\\/\"", 1, 6, "escape"),
            ("a: b\u{85}", 1, 5, "U+0085"),
            ("a: b\u{7}", 1, 5, "U+0007"),
            ("a: b\n\u{feff}c: d", 2, 1, "U+FEFF"),
            (": b", 1, 1, "key is missing"),
            ("a: &b/c d", 1, 4, "anchor"),
        ] {
            let (l, c, what) = problem(text).unwrap();
            assert!(what.contains(words), "{text:?}: {what}");
            assert_eq!((l, c), (line, column), "{text:?}");
        }
    }

    #[test]
    fn tabs_and_the_rest_are_fine_where_they_are() {
        for text in [
            "a:\tb",
            "a: b\t# c",
            "a: [\n\tb,\n\tc]",
            "a: 'x\ty'",
            "a: |\n  x\ty",
            "# \t\na: b",
            "%YAML 1.1\n---\na: b",
            "a: '\\/'",
            "a: \"\\\\/\"",
            "a: b\n...\n\t: {",
            "a: 50%\nb: x%",
            "\u{feff}a: b",
        ] {
            assert_eq!(problem(text).map(|problem| problem.2), None, "{text:?}");
        }
    }
}
