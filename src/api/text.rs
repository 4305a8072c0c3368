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
