//! What a rule says of an entry's value: texts, patterns, networks, regular expressions.

use std::net::IpAddr;

use ipnet::IpNet;

/// A pattern with `*`: each matches any text, the empty one too.
///
/// The pattern is split at the stars. A text matches when it begins with the first part, ends
/// with the last, and has the parts between in order, none overlapping another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    parts: Box<[Box<str>]>,
}

impl Glob {
    /// Reads a pattern; a text without `*` matches only itself.
    pub fn new(pattern: &str) -> Self {
        Self {
            parts: pattern.split('*').map(Box::from).collect(),
        }
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.parts else {
            return self.parts.first().is_some_and(|only| &**only == text);
        };
        let Some(rest) = text.strip_prefix(&**first) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(&**last) else {
            return false;
        };
        for part in middle {
            match rest.split_once(&**part) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
        true
    }
}

/// A matcher other than an exact text.
#[derive(Clone, Debug)]
pub enum Matcher {
    /// `*` in the value only: the key is compared as a whole.
    Value(Glob),
    /// `*` in the key: the pattern runs over `key_value`, as the reference service matches it.
    Composite(Glob),
    /// `cidr:10.0.0.0/8`
    Network(IpNet),
    /// `regex:…`, anchored at both ends, linear time.
    Regex(regex::Regex),
}

impl Matcher {
    /// Whether an entry matches. `rule_key` is the key as the rule writes it.
    pub fn matches(&self, rule_key: &str, key: &str, value: &str) -> bool {
        match self {
            Self::Value(glob) => rule_key == key && glob.matches(value),
            Self::Composite(glob) => glob.matches(&format!("{key}_{value}")),
            Self::Network(network) => {
                rule_key == key
                    && value
                        .parse::<IpAddr>()
                        .is_ok_and(|ip| network.contains(&ip.to_canonical()))
            }
            Self::Regex(regex) => rule_key == key && regex.is_match(value),
        }
    }
}

/// `mask:` of a rule: addresses are counted per prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Prefix length for IPv4, 0 to 32.
    pub ipv4: u8,
    /// Prefix length for IPv6, 0 to 128.
    pub ipv6: u8,
}

impl Mask {
    /// The network of an address; none when the text is no address. An IPv4 address in IPv6
    /// clothing counts as IPv4.
    pub fn apply(self, value: &str) -> Option<IpNet> {
        let address = value.parse::<IpAddr>().ok()?.to_canonical();
        let length = match address {
            IpAddr::V4(_) => self.ipv4,
            IpAddr::V6(_) => self.ipv6,
        };
        IpNet::new(address, length)
            .ok()
            .map(|network| network.trunc())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_the_reference_does() {
        for (pattern, text, want) in [
            ("ab*", "ab1", true),
            ("ab*", "ba", false),
            ("get*x", "getx", true),
            ("get*x", "qgetx", false),
            ("aa*bb*cc", "aabbcc", true),
            ("aa*bb*cc", "aa1cc", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("**", "x", true),
            ("ab", "ab", true),
            ("ab", "abc", false),
            ("a*bc*c", "abcc", true),
            ("a*bc*bc", "abc", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn masks_count_addresses_per_prefix() {
        let mask = Mask { ipv4: 24, ipv6: 64 };
        let shown = |value: &str| mask.apply(value).map(|network| network.to_string());
        assert_eq!(shown("10.1.2.3").as_deref(), Some("10.1.2.0/24"));
        assert_eq!(
            shown("2001:db8:1:2:3::4").as_deref(),
            Some("2001:db8:1:2::/64")
        );
        assert_eq!(shown("::ffff:10.1.2.3").as_deref(), Some("10.1.2.0/24"));
        assert_eq!(shown("not an address"), None);
    }
}
