//! Where the server is.

use std::{fmt, str::FromStr};

use http::uri::{Authority, Uri};

/// A server of plain-text gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host and port.
    authority: Authority,
}

impl Target {
    /// Host and port, as `:authority` carries them.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Host and port, as a socket address or a name to look up.
    pub fn host_and_port(&self) -> (&str, u16) {
        let host = self.authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        (host, self.authority.port_u16().unwrap_or(DEFAULT_PORT))
    }
}

/// Where rate limit servers listen.
const DEFAULT_PORT: u16 = 8081;

impl FromStr for Target {
    type Err = String;

    /// `http://HOST:PORT`, or without `http://`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
        match uri.scheme_str() {
            None | Some("http") => {}
            Some(scheme) => return Err(format!("{scheme}: only http:// (plain gRPC) is spoken")),
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(format!(
                "{text:?}: host and port only, the path is the protocol's"
            ));
        }
        let authority = uri.authority().cloned();
        let authority = authority.ok_or_else(|| format!("{text:?} has no host"))?;
        Ok(Self { authority })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_with_and_without_scheme() {
        for (text, host, port) in [
            ("http://127.0.0.1:8081", "127.0.0.1", 8081),
            ("http://limiter:9000/", "limiter", 9000),
            ("localhost:1234", "localhost", 1234),
            ("http://[::1]:80", "::1", 80),
            ("http://limiter", "limiter", 8081),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.host_and_port(), (host, port), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_a_target_says_why() {
        for (text, why) in [
            ("https://a:1", "only http://"),
            ("http://a:1/json", "host and port only"),
            ("", "empty"),
        ] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
