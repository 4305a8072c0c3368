//! Where Redis is and how it is used.

use std::{num::NonZeroU32, path::PathBuf};

use crate::model::{
    secret::Secret,
    time::{Clock, Span},
};

/// Where Redis is and how it is used. [`RedisOptions::parse`] reads a URL; everything else has a
/// default.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The server, the sentinels or nodes of the cluster.
    pub target: Target,
    /// TLS, when the URL says so.
    pub tls: Option<Tls>,
    /// Who we are.
    pub login: Login,
    /// Who we are to the sentinels; by default nobody.
    pub sentinel_login: Login,
    /// Number of the database; 0 in a cluster.
    pub database: i64,
    /// First part of every key. Replicas that share counters have the same.
    pub prefix: String,
    /// Longest time that one request waits for Redis, when its caller does not say less. Default
    /// 5 ms: Envoy gives the whole call 20 ms, so that an answer much later is never read.
    pub deadline: Span,
    /// Longest time for one attempt to connect, handshake included. Default 1 s.
    pub connect_timeout: Span,
    /// When a connection has not answered for this long it is given up and made anew. Default
    /// 500 ms. What it has not answered by then is not decided later either.
    pub silence: Span,
    /// Most requests of one worker that wait for Redis; beyond that a request is answered at once
    /// as if Redis were away. Default 1024.
    pub max_waiting: usize,
    /// Number of refusals that each process remembers until the limit would let the caller through
    /// again, so that they cost no round trip. Right only where nothing is refunded: a refund does
    /// not reach the memory of the other replicas. Default 0, which switches it off.
    pub remembered_refusals: usize,
    /// Number of processes that share the counters: a block of a sliced limit is at most the part
    /// `1 ÷ (2 × replicas)` of what is left. Default 1.
    pub replicas: NonZeroU32,
    /// How long leases of a session outlive a replica that died: it renews them three times as often
    /// while their stream lives. Default 15 s.
    pub session_life: Span,
    /// Tests only: counters go by this clock instead of the server's own.
    pub test_clock: Option<Clock>,
}

/// What kind of Redis, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One server.
    Single(Address),
    /// Sentinels that know the present primary of this name.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Address>,
        /// Name of the group.
        primary: String,
    },
    /// Some nodes of a cluster.
    Cluster(Vec<Address>),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// Path of a socket.
    Unix(PathBuf),
}

/// TLS by rustls. Without an authority, those of the system are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// File with the authority to trust, PEM.
    pub authority: Option<PathBuf>,
    /// Files with our certificate and its key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// User and password. Files win, and are read again for each new connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; none for the default one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// File with the user.
    pub user_file: Option<PathBuf>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
}

/// Why a URL is none. Never shows the URL: there may be a password in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme.
    #[error(
        "the store must be `memory`, redis://, rediss://, redis+unix://, redis+sentinel:// or \
         redis+cluster:// (rediss+… with TLS)"
    )]
    Scheme,
    /// No host, a port that is none, or a path that does not begin at the root.
    #[error("the store's URL needs HOST[:PORT], several separated by commas, or an absolute path")]
    Address,
    /// No name.
    #[error("a sentinel URL needs the name of the primary: redis+sentinel://HOST:PORT,…/NAME")]
    Primary,
    /// Not a number.
    #[error("the database in the store's URL must be a number")]
    Database,
    /// A `%` without two hexadecimal digits.
    #[error("user and password in the store's URL must be percent-encoded")]
    Escape,
}

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

impl RedisOptions {
    /// Everything as by default.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            tls: None,
            login: Login::default(),
            sentinel_login: Login::default(),
            database: 0,
            prefix: String::from("porteiro"),
            deadline: Span::from_millis(5),
            connect_timeout: Span::from_secs(1),
            silence: Span::from_millis(500),
            max_waiting: 1024,
            remembered_refusals: 0,
            replicas: NonZeroU32::MIN,
            session_life: Span::from_secs(15),
            test_clock: None,
        }
    }

    /// Reads `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, `redis+unix://PATH`,
    /// `redis+sentinel://…@HOST[:PORT],…/NAME[/DATABASE]`, `redis+cluster://…@HOST[:PORT],…`; with
    /// `rediss` in front: TLS.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(UrlError::Scheme)?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => None,
            "rediss" | "valkeys" => Some(Tls::default()),
            "unix" if kind.is_empty() => return Self::unix(rest),
            _ => return Err(UrlError::Scheme),
        };
        if kind == "unix" {
            return Self::unix(rest);
        }
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (parse_login(login)?, rest),
            None => (Login::default(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (target, database) = match kind {
            "" => {
                let [address] = <[Address; 1]>::try_from(addresses(hosts, PORT)?)
                    .map_err(|_| UrlError::Address)?;
                (Target::Single(address), path)
            }
            "cluster" => (Target::Cluster(addresses(hosts, PORT)?), ""),
            "sentinel" => {
                let (primary, database) = path.split_once('/').unwrap_or((path, ""));
                if primary.is_empty() {
                    return Err(UrlError::Primary);
                }
                let sentinels = addresses(hosts, SENTINEL_PORT)?;
                let primary = primary.to_owned();
                (Target::Sentinel { sentinels, primary }, database)
            }
            _ => return Err(UrlError::Scheme),
        };
        Ok(Self {
            tls,
            login,
            database: match database {
                "" => 0,
                number => number.parse().map_err(|_| UrlError::Database)?,
            },
            ..Self::new(target)
        })
    }

    fn unix(path: &str) -> Result<Self, UrlError> {
        if !path.starts_with('/') {
            return Err(UrlError::Address);
        }
        Ok(Self::new(Target::Single(Address::Unix(PathBuf::from(
            path,
        )))))
    }

    /// Whether keys have slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }
}

/// `password`, `:password` or `user:password`, percent-encoded. The reference's `REDIS_AUTH` has
/// the same form.
pub fn parse_login(text: &str) -> Result<Login, UrlError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, password),
        None => ("", text),
    };
    let some = |text: &str| -> Result<Option<String>, UrlError> {
        let plain = unescape(text)?;
        Ok(Some(plain).filter(|plain| !plain.is_empty()))
    };
    Ok(Login {
        user: some(user)?,
        password: some(password)?.map(Secret::new),
        ..Login::default()
    })
}

fn addresses(hosts: &str, port: u16) -> Result<Vec<Address>, UrlError> {
    hosts.split(',').map(|host| address(host, port)).collect()
}

fn address(text: &str, default: u16) -> Result<Address, UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(UrlError::Address)?;
            (host, rest.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| UrlError::Address)?,
        None => default,
    };
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !"/?#@".contains(c);
    if host.is_empty() || !host.chars().all(plain) {
        return Err(UrlError::Address);
    }
    Ok(Address::Tcp(host.to_owned(), port))
}

fn unescape(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            return Err(UrlError::Escape);
        };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn a_url_names_one_server() {
        let options = RedisOptions::parse("redis://ana:p%40ss@db:7000/3").unwrap();
        assert_eq!(options.target, Target::Single(tcp("db", 7000)));
        assert_eq!(options.database, 3);
        assert_eq!(options.login.user.as_deref(), Some("ana"));
        assert_eq!(options.login.password, Some(Secret::new("p@ss")));
        assert_eq!(options.tls, None);
        assert!(!format!("{options:?}").contains("p@ss"));
        let local = RedisOptions::parse("rediss://[::1]").unwrap();
        assert_eq!(local.target, Target::Single(tcp("::1", 6379)));
        assert!(local.tls.is_some());
    }

    #[test]
    fn a_url_names_a_socket_sentinels_or_a_cluster() {
        let socket = RedisOptions::parse("redis+unix:///run/r.sock").unwrap();
        let path = PathBuf::from("/run/r.sock");
        assert_eq!(socket.target, Target::Single(Address::Unix(path)));
        let sentinel = RedisOptions::parse("redis+sentinel://:pw@a,b:9/main/2").unwrap();
        let sentinels = vec![tcp("a", 26_379), tcp("b", 9)];
        let primary = "main".to_owned();
        assert_eq!(sentinel.target, Target::Sentinel { sentinels, primary });
        assert_eq!(sentinel.database, 2);
        let cluster = RedisOptions::parse("rediss+cluster://a:1,b:2").unwrap();
        assert_eq!(
            cluster.target,
            Target::Cluster(vec![tcp("a", 1), tcp("b", 2)])
        );
    }

    #[test]
    fn what_is_no_url_is_refused_without_showing_it() {
        for (url, error) in [
            ("memcache://a", UrlError::Scheme),
            ("a:6379", UrlError::Scheme),
            ("redis://", UrlError::Address),
            ("redis://a:port", UrlError::Address),
            ("redis://a,b", UrlError::Address),
            ("redis+sentinel://a", UrlError::Primary),
            ("redis://a/x", UrlError::Database),
            ("redis://%zz@a", UrlError::Escape),
        ] {
            assert_eq!(RedisOptions::parse(url).unwrap_err(), error, "{url}");
        }
    }
}
