//! The store that all replicas share, by our settings or by the reference's variables.

use std::{fs, num::NonZeroU32};

use super::{source::Source, values};
use crate::{
    model::{
        key::{KeyHasher, KeySecret},
        time::Span,
    },
    store::redis::{Login, RedisOptions, Tls, UrlError, parse_login},
};

/// What is needed for a shared store.
#[derive(Debug)]
pub(in crate::cli) struct SharedSettings {
    /// Where it is.
    pub(in crate::cli) redis: RedisOptions,
    /// How many share it.
    pub(in crate::cli) replicas: NonZeroU32,
    /// Names counters; the same at all replicas.
    pub(in crate::cli) secret: KeySecret,
}

/// None: counters live in memory.
pub(super) fn shared(source: &mut Source<'_>) -> Option<SharedSettings> {
    // All are read, also where nothing is shared: what is wrong is said in any case.
    let place = place(source);
    let prefix = source.take("store-prefix", plain_text);
    let user_file = source.take("store-user-file", values::readable);
    let password_file = source.take("store-password-file", values::readable);
    let secret = source.take("store-secret-file", values::readable);
    let authority = source.take("store-ca", values::readable);
    let certificate = source.take("store-cert", values::readable);
    let key = source.take("store-key", values::readable);
    let deadline = source.take("store-deadline", values::positive_duration);
    let max_waiting = source.take("store-max-waiting", values::count);
    let remember = source.take("store-remember-refusals", values::count);
    let session_life = source.take("store-session-life", values::positive_duration);
    let replicas = source.take("replicas", |text| {
        text.parse()
            .map_err(|_| "want a whole number of at least 1")
    });
    let mut redis = place?;
    redis.login.user_file = user_file;
    redis.login.password_file = password_file;
    if let Some(tls) = &mut redis.tls {
        *tls = Tls {
            authority,
            identity: certificate.zip(key),
        };
    }
    redis.prefix = prefix.unwrap_or(redis.prefix);
    redis.deadline = deadline.map_or(redis.deadline, Span::from);
    redis.remembered_refusals = remember.unwrap_or(redis.remembered_refusals);
    redis.max_waiting = max_waiting.unwrap_or(redis.max_waiting);
    let replicas = replicas.unwrap_or(NonZeroU32::MIN);
    redis.replicas = replicas;
    redis.session_life = session_life.map_or(redis.session_life, Span::from);
    let secret = secret.and_then(|path| fs::read(path).ok());
    Some(SharedSettings {
        redis,
        replicas,
        secret: naming(&secret.unwrap_or_default()),
    })
}

fn place(source: &mut Source<'_>) -> Option<RedisOptions> {
    let theirs = reference(source);
    let Some((given_as, url)) = source.ours("store") else {
        return theirs;
    };
    if url == "memory" {
        return None;
    }
    // The URL may hold a password: it is not shown.
    RedisOptions::parse(&url)
        .map_err(|error| source.problem(format!("{given_as}: {error}")))
        .ok()
}

fn plain_text(text: &str) -> Result<String, &'static str> {
    if text.chars().all(|c| c.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err("want printable ASCII characters without blanks")
    }
}

/// Replicas that share counters must name them alike, so the key comes from a text and not from
/// chance. Without a text whoever knows this program can find values that share a counter.
fn naming(secret: &[u8]) -> KeySecret {
    let mut mixer = KeyHasher::new(*b"porteiro counter");
    mixer.text(&String::from_utf8_lossy(secret));
    KeySecret::new(mixer.finish().bits().to_le_bytes())
}

/// The reference's variables: `REDIS_URL` with type and socket type beside it. Without a URL
/// nothing is shared: the reference's default is a socket that hardly anybody has.
fn reference(source: &mut Source<'_>) -> Option<RedisOptions> {
    let one_of = |names: [&'static str; 3]| {
        move |text: &str| {
            let text = text.to_ascii_lowercase();
            let known = names.contains(&text.as_str());
            known
                .then_some(text)
                .ok_or("want one of those that the reference knows")
        }
    };
    let kinds = one_of(["single", "sentinel", "cluster"]);
    let kind = source.take_variable("REDIS_TYPE", kinds);
    let socket = source.take_variable("REDIS_SOCKET_TYPE", one_of(["tcp", "unix", "tls"]));
    let tls = source.take_variable("REDIS_TLS", values::boolean);
    let timeout = source.take_variable("REDIS_TIMEOUT", values::positive_duration);
    let login = login(source, "REDIS_AUTH");
    let sentinel_login = self::login(source, "REDIS_SENTINEL_AUTH");
    let url = source.variable("REDIS_URL")?;
    let is_path = socket.as_deref() == Some("unix") || (socket.is_none() && url.starts_with('/'));
    let encrypted = tls == Some(true) || socket.as_deref() == Some("tls");
    let scheme = if encrypted { "rediss" } else { "redis" };
    let options = if url.contains("://") {
        RedisOptions::parse(url)
    } else {
        match (kind.as_deref(), url.split_once(',')) {
            (Some("sentinel"), Some((primary, sentinels))) => {
                RedisOptions::parse(&format!("{scheme}+sentinel://{sentinels}/{primary}"))
            }
            (Some("sentinel"), None) => Err(UrlError::Primary),
            (Some("cluster"), _) => RedisOptions::parse(&format!("{scheme}+cluster://{url}")),
            _ if is_path => RedisOptions::parse(&format!("redis+unix://{url}")),
            _ => RedisOptions::parse(&format!("{scheme}://{url}")),
        }
    };
    let mut options = options
        // The URL may hold a password: it is not shown.
        .map_err(|error| source.problem(format!("REDIS_URL: {error}")))
        .ok()?;
    options.login = login.unwrap_or(options.login);
    options.sentinel_login = sentinel_login.unwrap_or(options.sentinel_login);
    // Of connecting, as there; more than our second would only hide an outage.
    let timeout = timeout.map_or(options.connect_timeout, Span::from);
    options.connect_timeout = timeout.min(options.connect_timeout);
    Some(options)
}

fn login(source: &mut Source<'_>, name: &str) -> Option<Login> {
    let login = parse_login(source.variable(name)?);
    login
        .map_err(|error| source.problem(format!("{name}: {error}")))
        .ok()
}
