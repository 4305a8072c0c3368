//! What an unquoted word of a rule file is: YAML 1.1, as Go's yaml.v2 reads it.
//!
//! The reference service reads its files with that library, and existing files rely on it: `yes`
//! and `on` are booleans, `010` is eight, `1_000` a thousand, `12:30` and dates are texts.

use crate::config::finding::quoted;

/// The value of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    /// `~`, `null`, nothing at all.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// Fits 64 bits, signed.
    Int(i64),
    /// Fits 64 bits only unsigned.
    Unsigned(u64),
    /// Has a fraction or an exponent, or is too long for 64 bits.
    Float(f64),
    /// Anything else.
    Text,
}

const TRUE: [&str; 11] = [
    "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON",
];
const FALSE: [&str; 11] = [
    "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF",
];
const NULL: [&str; 5] = ["", "~", "null", "Null", "NULL"];
const NAN: [&str; 3] = [".nan", ".NaN", ".NAN"];
const INFINITY: [&str; 6] = [".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"];
const MINUS_INFINITY: [&str; 3] = ["-.inf", "-.Inf", "-.INF"];

/// The value of an unquoted, untagged text.
pub(super) fn resolve(text: &str) -> Scalar {
    if NULL.contains(&text) {
        return Scalar::Null;
    }
    if TRUE.contains(&text) {
        return Scalar::Bool(true);
    }
    if FALSE.contains(&text) {
        return Scalar::Bool(false);
    }
    if NAN.contains(&text) {
        return Scalar::Float(f64::NAN);
    }
    if INFINITY.contains(&text) {
        return Scalar::Float(f64::INFINITY);
    }
    if MINUS_INFINITY.contains(&text) {
        return Scalar::Float(f64::NEG_INFINITY);
    }
    match text.as_bytes().first() {
        Some(b'.') if is_float(text) => float(text).map_or(Scalar::Text, Scalar::Float),
        Some(b'0'..=b'9' | b'+' | b'-') => number(text),
        _ => Scalar::Text,
    }
}

/// The value of a text tagged as `!!kind`, quoted or not. Kinds that are no scalars make texts.
///
/// # Errors
///
/// The text is not what the tag says, in the words of the finding.
pub(super) fn resolve_as(kind: &str, text: &str) -> Result<Scalar, String> {
    let scalar = resolve(text);
    let fits = match (kind, scalar) {
        ("null", Scalar::Null)
        | ("bool", Scalar::Bool(_))
        | ("int", Scalar::Int(_) | Scalar::Unsigned(_))
        | ("float", Scalar::Float(_)) => return Ok(scalar),
        #[expect(clippy::cast_precision_loss, reason = "what the tag asks for")]
        ("float", Scalar::Int(int)) => return Ok(Scalar::Float(int as f64)),
        ("timestamp", _) => is_timestamp(text),
        ("null" | "bool" | "int" | "float", _) => false,
        _ => true,
    };
    if fits {
        Ok(Scalar::Text)
    } else {
        Err(format!("{} is no {kind}", quoted(text)))
    }
}

/// What `!!` stands for.
pub(super) const TAG_PREFIX: &str = "tag:yaml.org,2002:";

/// A text that starts with a digit or a sign.
fn number(text: &str) -> Scalar {
    let plain = text.replace('_', "");
    if let Some(int) = integer(&plain) {
        return int;
    }
    if is_float(&plain) {
        return float(&plain).map_or(Scalar::Text, Scalar::Float);
    }
    // The library strips the prefix and reads a number with a sign of its own.
    let binary = plain
        .strip_prefix("0b")
        .map(|digits| i64::from_str_radix(digits, 2));
    match binary {
        Some(Ok(int)) => Scalar::Int(int),
        _ => Scalar::Text,
    }
}

/// An integer with an optional sign and prefix; a leading zero means octal.
fn integer(text: &str) -> Option<Scalar> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("+", &text[1..]),
        _ => ("", text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'b' | b'B', _, ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &digits[2..]),
        [b'0', b'x' | b'X', _, ..] => (16, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    match sign {
        "-" => 0_i64.checked_sub_unsigned(magnitude).map(Scalar::Int),
        _ => match i64::try_from(magnitude) {
            Ok(int) => Some(Scalar::Int(int)),
            Err(_) if sign.is_empty() => Some(Scalar::Unsigned(magnitude)),
            Err(_) => None,
        },
    }
}

/// `[+-]? (.d+ | d+[.d*]) [e[+-]d+]?`
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let exponent_fits = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    exponent_fits && mantissa_fits
}

/// A float by value; none when it is out of range (the text then stays a text).
fn float(text: &str) -> Option<f64> {
    text.parse().ok().filter(|float: &f64| float.is_finite())
}

/// `2001-12-14`, `2001-12-14T21:59:43.1Z`, `2001-12-14t21:59:43+02:00`, `2001-12-14 21:59:43`.
fn is_timestamp(text: &str) -> bool {
    let (date, time) = match text.split_once(['T', 't']) {
        Some((date, time)) => (date, Some((time, true))),
        None => match text.split_once(' ') {
            Some((date, time)) => (date, Some((time, false))),
            None => (text, None),
        },
    };
    let two = |text: &str, least: i8, most: i8| {
        let short = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let value: Option<i8> = text.parse().ok();
        value.filter(|value| short && (least..=most).contains(value))
    };
    let parts: Vec<&str> = date.split('-').collect();
    let [year, month, day] = parts[..] else {
        return false;
    };
    let year = (year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| year.parse::<i16>().ok())
        .flatten();
    let (Some(year), Some(month), Some(day)) = (year, two(month, 1, 12), two(day, 1, 31)) else {
        return false;
    };
    if jiff::civil::Date::new(year, month, day).is_err() {
        return false;
    }
    let Some((time, zoned)) = time else {
        return true;
    };
    let time = if zoned {
        let Some(at) = time.find(['Z', '+', '-']) else {
            return false;
        };
        let (time, zone) = time.split_at(at);
        let offset = |zone: &str| {
            zone.split_once(':').is_some_and(|(hours, minutes)| {
                hours.len() == 2
                    && minutes.len() == 2
                    && two(hours, 0, 24).is_some()
                    && two(minutes, 0, 60).is_some()
            })
        };
        if zone != "Z" && !offset(&zone[1..]) {
            return false;
        }
        time
    } else {
        time
    };
    let (clock, fraction) = match time.split_once(['.', ',']) {
        Some((clock, fraction)) => (clock, Some(fraction)),
        None => (time, None),
    };
    let parts: Vec<&str> = clock.split(':').collect();
    let [hour, minute, second] = parts[..] else {
        return false;
    };
    two(hour, 0, 23).is_some()
        && two(minute, 0, 59).is_some()
        && two(second, 0, 59).is_some()
        && fraction.is_none_or(|fraction| {
            !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// The text that a `!!binary` scalar encodes in base 64, with padding; line breaks do not count.
///
/// # Errors
///
/// It is not base 64, or what it encodes is no text.
pub(super) fn decoded(text: &str) -> Result<Box<str>, String> {
    let wrong = || format!("{} is not base 64", quoted(text));
    let symbols: Vec<u8> = text
        .bytes()
        .filter(|byte| !b"\r\n".contains(byte))
        .collect();
    let padding = symbols
        .iter()
        .rev()
        .take_while(|byte| **byte == b'=')
        .count();
    let digits = &symbols[..symbols.len() - padding];
    if !symbols.len().is_multiple_of(4) || padding > 2 {
        return Err(wrong());
    }
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0_u32);
    for symbol in digits {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(wrong()),
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.extend(u8::try_from(bits >> count & 0xff));
        }
    }
    String::from_utf8(bytes)
        .map(String::into_boxed_str)
        .map_err(|_| format!("{} encodes bytes that are no UTF-8", quoted(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_yaml_1_1_makes_of_them() {
        for (text, want) in [
            ("", Scalar::Null),
            ("Null", Scalar::Null),
            ("yes", Scalar::Bool(true)),
            ("OFF", Scalar::Bool(false)),
            ("tRue", Scalar::Text),
            ("007", Scalar::Int(7)),
            ("010", Scalar::Int(8)),
            ("08", Scalar::Float(8.0)),
            ("0o17", Scalar::Int(15)),
            ("0XfF", Scalar::Int(255)),
            ("-0b11", Scalar::Int(-3)),
            ("0b-1", Scalar::Int(-1)),
            ("+7", Scalar::Int(7)),
            ("1_000", Scalar::Int(1_000)),
            ("0x", Scalar::Text),
            ("-9223372036854775808", Scalar::Int(i64::MIN)),
            ("9223372036854775808", Scalar::Unsigned(1 << 63)),
            (
                "18446744073709551616",
                Scalar::Float(18_446_744_073_709_551_616.0),
            ),
            ("1e3", Scalar::Float(1_000.0)),
            ("1.", Scalar::Float(1.0)),
            (".5", Scalar::Float(0.5)),
            (".", Scalar::Text),
            ("1e999", Scalar::Text),
            ("-.INF", Scalar::Float(f64::NEG_INFINITY)),
            ("infinity", Scalar::Text),
            ("12:30:45", Scalar::Text),
            ("2001-01-01", Scalar::Text),
            ("1.5s", Scalar::Text),
        ] {
            assert_eq!(resolve(text), want, "{text}");
        }
    }

    #[test]
    fn a_tag_must_fit_its_text() {
        assert_eq!(resolve_as("int", "0x10"), Ok(Scalar::Int(16)));
        assert_eq!(resolve_as("float", "5"), Ok(Scalar::Float(5.0)));
        assert_eq!(resolve_as("str", "5"), Ok(Scalar::Text));
        assert_eq!(
            resolve_as("timestamp", "2001-12-14t21:59:43.10-05:00"),
            Ok(Scalar::Text)
        );
        for (kind, text) in [
            ("int", "1.5"),
            ("bool", "1"),
            ("null", "x"),
            ("timestamp", "2001-02-30"),
            ("timestamp", "2001-01-01T25:00:00Z"),
        ] {
            assert!(resolve_as(kind, text).is_err(), "{kind} {text}");
        }
    }

    #[test]
    fn base_64_is_read_strictly() {
        assert_eq!(decoded("aGVs\nbG8=").as_deref(), Ok("hello"));
        assert_eq!(decoded("").as_deref(), Ok(""));
        for text in ["aGVsbG8", "a===", "*", "/w=="] {
            assert!(decoded(text).is_err(), "{text}");
        }
    }
}
