//! How a descriptor of a rule finds its entries: `value:`, `mask:`.
//!
//! | `value` | matches |
//! |---|---|
//! | none, or empty | every value, each with a counter of its own |
//! | `text` | that text |
//! | `te*t` | texts of that pattern; `*` is any text, the empty one too |
//! | `cidr:10.0.0.0/8` | addresses of that network |
//! | `regex:a+b?` | texts that match as a whole, in linear time |
//!
//! At one level the most specific wins: the exact text, then the longest network, then the first
//! pattern (`*` or `regex:`) in the order of the files, then the key alone.

use std::net::IpAddr;

use ipnet::IpNet;
use regex::RegexBuilder;

use crate::{
    config::{
        finding::quoted,
        reader::{Located, Reader},
        yaml::Node,
    },
    rules::{
        tree::Child,
        value::{Glob, Mask, Matcher},
    },
};

/// Memory that one regular expression may take when compiled.
const REGEX_BYTES: usize = 256 * 1024;

/// How a key and a value are matched.
pub(super) fn child(reader: &mut Reader, key: &str, value: &Located<Box<str>>) -> Option<Child> {
    let text = &*value.value;
    let special = text.strip_prefix("cidr:").map(network);
    let special = special.or_else(|| text.strip_prefix("regex:").map(regex));
    if let Some(matcher) = special {
        return reader.field("value", |reader| {
            if key.contains('*') {
                reader.error(
                    value.at,
                    "the key is a pattern already",
                    "remove the `*` from the key",
                );
            }
            match matcher {
                Ok(matcher) => Some(Child::Pattern(matcher)),
                Err((what, advice)) => {
                    reader.error(value.at, what, advice);
                    None
                }
            }
        });
    }
    Some(if key.contains('*') {
        let composite = if text.is_empty() {
            key.to_owned()
        } else {
            format!("{key}_{text}")
        };
        Child::Pattern(Matcher::Composite(Glob::new(&composite)))
    } else if text.contains('*') {
        Child::Pattern(Matcher::Value(Glob::new(text)))
    } else if text.is_empty() {
        Child::Any
    } else {
        Child::Exact(text.into())
    })
}

/// What is wrong, and what to do.
type Wrong = (String, &'static str);

/// `10.0.0.0/8`, or an address alone.
fn network(text: &str) -> Result<Matcher, Wrong> {
    const ADVICE: &str = "write an address and a prefix length, such as cidr:10.0.0.0/8";
    let network: IpNet = match text.parse::<IpAddr>() {
        Ok(address) => address.into(),
        Err(_) => text
            .parse()
            .map_err(|_| (format!("{} is no network", quoted(text)), ADVICE))?,
    };
    if network.trunc() != network {
        let what = format!(
            "{text} has bits behind the prefix; the network is {}",
            network.trunc()
        );
        return Err((what, "write the network, or a longer prefix"));
    }
    Ok(Matcher::Network(network))
}

/// Anchored at both ends.
fn regex(text: &str) -> Result<Matcher, Wrong> {
    let anchored = format!(r"\A(?:{text})\z");
    // Checked alone first: `a)(b` would be fine only with what is put around it.
    let built = regex_syntax_check(text).and_then(|()| {
        RegexBuilder::new(&anchored)
            .size_limit(REGEX_BYTES)
            .dfa_size_limit(REGEX_BYTES)
            .build()
    });
    match built {
        Ok(regex) => Ok(Matcher::Regex(regex)),
        Err(regex::Error::CompiledTooBig(_)) => Err((
            format!("{} takes more than {REGEX_BYTES} bytes", quoted(text)),
            "write a simpler expression",
        )),
        Err(error) => {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default();
            let reason = reason.strip_prefix("error: ").unwrap_or(reason);
            Err((
                format!("{} is no regular expression: {reason}", quoted(text)),
                "look-around and back-references are not supported",
            ))
        }
    }
}

fn regex_syntax_check(text: &str) -> Result<(), regex::Error> {
    RegexBuilder::new(text)
        .size_limit(REGEX_BYTES)
        .build()
        .map(|_| ())
}

/// Whether all values of a rule can share one counter.
pub(super) fn is_pattern(key: &str, value: &str) -> bool {
    let special = value.starts_with("cidr:") || value.starts_with("regex:");
    special || key.contains('*') || value.contains('*')
}

/// `mask: {ipv4: 24, ipv6: 64}`; a family that is not named is not masked.
pub(super) fn mask(reader: &mut Reader, node: &Node) -> Located<Mask> {
    let mut mask = Mask {
        ipv4: 32,
        ipv6: 128,
    };
    let mut named = false;
    reader.own_fields(node, &["ipv4", "ipv6"], &mut |reader, name, value| {
        named = true;
        let longest = if name == "ipv4" { 32 } else { 128 };
        let Some(length) = reader.count(value) else {
            return;
        };
        match u8::try_from(length.value) {
            Ok(length) if length <= longest => match name {
                "ipv4" => mask.ipv4 = length,
                _ => mask.ipv6 = length,
            },
            _ => {
                let what = format!("{} is no prefix length", length.value);
                reader.error(
                    value.at,
                    what,
                    format!("write a number from 0 to {longest}"),
                );
            }
        }
    });
    if !named {
        reader.error(
            node.at,
            "no prefix length is given",
            "write {ipv4: 24, ipv6: 64} or one of them",
        );
    }
    Located {
        value: mask,
        at: node.at,
    }
}
