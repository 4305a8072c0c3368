//! Texts on their way out.

use std::borrow::Cow;

/// The text without control characters. Envoy sends on what it gets as it is, and logs are read
/// line by line: a CR, LF or NUL that came in with a request must not leave this program.
pub fn without_controls(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.replace(char::is_control, "_"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Keys and values of a descriptor as people write it: `tenant=acme,user=ann`. A backslash takes
/// the comma, equals sign or backslash behind it literally; the first equals sign ends the key. An
/// empty text is a descriptor without entries.
///
/// # Errors
/// The entry that has no equals sign.
pub fn entries(text: &str) -> Result<Vec<(String, String)>, NoEntry> {
    let mut entries = Vec::new();
    let mut key: Option<String> = None;
    let mut word = String::new();
    let mut end = |key: Option<String>, word: String| match key {
        Some(key) => {
            entries.push((key, word));
            Ok(())
        }
        None => Err(NoEntry(word)),
    };
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => word.extend(chars.next()),
            '=' if key.is_none() => key = Some(std::mem::take(&mut word)),
            ',' => end(key.take(), std::mem::take(&mut word))?,
            c => word.push(c),
        }
    }
    if !text.is_empty() {
        end(key, word)?;
    }
    Ok(entries)
}

/// A text that is no `key=value`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no key=value")]
pub struct NoEntry(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_underscores() {
        assert_eq!(without_controls("a\r\nb\0c\u{85}"), "a__b_c_");
        assert!(matches!(without_controls("né 語"), Cow::Borrowed(_)));
    }

    #[test]
    fn descriptors_are_read_as_people_write_them() {
        let read = |text| entries(text).unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(read(""), []);
        assert_eq!(read("a=b"), [pair("a", "b")]);
        assert_eq!(read("a=,b=c=d"), [pair("a", ""), pair("b", "c=d")]);
        assert_eq!(
            read(r"a=x\,y,b\=c=\\"),
            [pair("a", "x,y"), pair("b=c", r"\")]
        );
        assert_eq!(read("=b"), [pair("", "b")]);
        assert_eq!(
            entries("a=b,c").unwrap_err().to_string(),
            "`c` is no key=value"
        );
        assert!(entries("a=b,").is_err());
    }
}
