//! Descriptors as people write them on a command line or in a column of a table.
//!
//! `key=value,key=value` is one descriptor; `;` separates several. Only the first `=` of an entry
//! divides it. A backslash takes the next character as it is: `path=/a\,b`.

use std::{borrow::Cow, fmt::Write as _};

use crate::model::request::Entry;

/// One entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Before the first `=`; never empty.
    pub key: Cow<'a, str>,
    /// After it; may be empty.
    pub value: Cow<'a, str>,
    /// The descriptor ends here.
    pub last: bool,
}

/// Why a text is no list of descriptors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotationError {
    /// An entry without `=`.
    #[error("{0:?} has no `=`; write key=value, entries apart by `,` and descriptors by `;`")]
    NoEquals(String),
    /// An entry that begins with `=`, or nothing where an entry should be.
    #[error("an entry without a key; write key=value")]
    NoKey,
    /// Nothing follows the last backslash.
    #[error("a `\\` at the end; write `\\\\` for one backslash")]
    LoneBackslash,
}

/// The entries of all descriptors in `text`, in order; an empty text has none.
pub fn entries(text: &str) -> impl Iterator<Item = Result<Piece<'_>, NotationError>> {
    let mut rest = (!text.is_empty()).then_some(text);
    std::iter::from_fn(move || {
        let (entry, ending, after) = cut(rest?);
        rest = after;
        let piece = read(entry, ending != Ending::Comma);
        if piece.is_err() {
            rest = None;
        }
        Some(piece)
    })
}

/// One descriptor in this notation: [`entries`] reads it back.
pub fn write(descriptor: &[Entry<'_>], into: &mut String) {
    for (index, entry) in descriptor.iter().enumerate() {
        if index > 0 {
            into.push(',');
        }
        escape(entry.key, true, into);
        into.push('=');
        escape(entry.value, false, into);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Comma,
    Semicolon,
    End,
}

/// The text before the first separator, which one it is, and what follows it.
fn cut(text: &str) -> (&str, Ending, Option<&str>) {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => return (&text[..at], Ending::Comma, Some(&text[at + 1..])),
            b';' => return (&text[..at], Ending::Semicolon, Some(&text[at + 1..])),
            _ => {}
        }
    }
    (text, Ending::End, None)
}

fn read(entry: &str, last: bool) -> Result<Piece<'_>, NotationError> {
    let mut escaped = false;
    let equals = entry.bytes().position(|byte| {
        let divides = byte == b'=' && !escaped;
        escaped = byte == b'\\' && !escaped;
        divides
    });
    let Some(equals) = equals else {
        return Err(if entry.is_empty() {
            NotationError::NoKey
        } else {
            NotationError::NoEquals(entry.to_owned())
        });
    };
    let key = unescape(&entry[..equals])?;
    if key.is_empty() {
        return Err(NotationError::NoKey);
    }
    Ok(Piece {
        key,
        value: unescape(&entry[equals + 1..])?,
        last,
    })
}

fn unescape(text: &str) -> Result<Cow<'_, str>, NotationError> {
    if !text.contains('\\') {
        return Ok(Cow::Borrowed(text));
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(characters.next().ok_or(NotationError::LoneBackslash)?),
            other => plain.push(other),
        }
    }
    Ok(Cow::Owned(plain))
}

/// Control characters are shown, so that a line stays a line; they do not read back.
fn escape(text: &str, key: bool, into: &mut String) {
    for character in text.chars() {
        match character {
            '\\' | ',' | ';' => into.extend(['\\', character]),
            '=' if key => into.push_str("\\="),
            control if control.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(into, "{}", control.escape_debug());
            }
            other => into.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<Vec<(String, String)>>, NotationError> {
        let mut descriptors = vec![Vec::new()];
        for piece in entries(text) {
            let piece = piece?;
            let entry = (piece.key.into_owned(), piece.value.into_owned());
            descriptors.last_mut().unwrap().push(entry);
            if piece.last {
                descriptors.push(Vec::new());
            }
        }
        descriptors.pop();
        Ok(descriptors)
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn descriptors_are_read_as_written() {
        assert_eq!(all("").unwrap(), Vec::<Vec<_>>::new());
        let one = pairs(&[("user", "a"), ("path", "/x=1")]);
        assert_eq!(all("user=a,path=/x=1").unwrap(), [one]);
        let two = [pairs(&[("a", "1")]), pairs(&[("b", ""), ("c", "3")])];
        assert_eq!(all("a=1;b=,c=3").unwrap(), two);
        let escaped = pairs(&[("k=y", "a,b;c\\d")]);
        assert_eq!(all(r"k\=y=a\,b\;c\\d").unwrap(), [escaped]);
        let address = pairs(&[("ip", "2001:db8::1")]);
        assert_eq!(all("ip=2001:db8::1").unwrap(), [address]);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(all("user"), Err(NotationError::NoEquals("user".to_owned())));
        assert_eq!(all("=a"), Err(NotationError::NoKey));
        assert_eq!(all("a=1,"), Err(NotationError::NoKey));
        assert_eq!(all("a=1;;b=2"), Err(NotationError::NoKey));
        assert_eq!(all("a=1\\"), Err(NotationError::LoneBackslash));
    }

    #[test]
    fn what_is_written_reads_back() {
        let entries = [
            Entry {
                key: "k=,;\\",
                value: "v=,;\\é",
            },
            Entry {
                key: "b",
                value: "",
            },
        ];
        let mut text = String::new();
        write(&entries, &mut text);
        assert_eq!(text, r"k\=\,\;\\=v=\,\;\\é,b=");
        let back = pairs(&[("k=,;\\", "v=,;\\é"), ("b", "")]);
        assert_eq!(all(&text).unwrap(), [back]);
        let mut shown = String::new();
        let line = [Entry {
            key: "a",
            value: "x\ny",
        }];
        write(&line, &mut shown);
        assert_eq!(shown, r"a=x\ny");
    }
}
