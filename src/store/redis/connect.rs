//! Opening connections: one server, the primary that sentinels name, a cluster.

use std::{fs, io, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo as _, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    RedisResult, TlsCertificates, TlsMode, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};
use tokio::sync::Notify;

use crate::{
    model::secret::Secret,
    store::redis::options::{Address, Login, RedisOptions, Target, Tls},
};

/// An open connection that many may use at once.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    /// Sends a command and waits for its answer, without a deadline of its own.
    pub(super) async fn call(&mut self, command: &Cmd) -> RedisResult<Value> {
        let answer = match self {
            Self::Single(connection) => connection.req_packed_command(command).await,
            Self::Cluster(connection) => connection.req_packed_command(command).await,
        };
        // An error of the server is an answer to the crate.
        answer.and_then(Value::extract_error)
    }
}

/// Opens a connection. Credentials and certificates are read from their files, names are resolved
/// and sentinels are asked each time. The caller sets the deadline. `lost` is told when the
/// connection broke, also when nobody uses it; a cluster's connections mend themselves.
pub(super) async fn open(options: &RedisOptions, lost: &Arc<Notify>) -> RedisResult<Connection> {
    let certificates = options.tls.as_ref().map(certificates).transpose()?;
    let login = Credentials::read(&options.login)?;
    match &options.target {
        Target::Single(address) => {
            let info = info(address, options, &login)?;
            let client = match certificates {
                Some(certificates) => Client::build_with_tls(info, certificates)?,
                None => Client::open(info)?,
            };
            let connection = client
                .get_multiplexed_async_connection_with_config(&config(options, lost))
                .await?;
            Ok(Connection::Single(connection))
        }
        Target::Sentinel { sentinels, primary } => {
            let addresses = sentinels.iter().map(|address| addr(address, options));
            let mut builder =
                SentinelClientBuilder::new(addresses, primary, SentinelServerType::Master)?
                    .set_client_to_redis_db(options.database)
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3);
            if let Some(user) = &login.user {
                builder = builder.set_client_to_redis_username(user);
            }
            if let Some(password) = &login.password {
                builder = builder.set_client_to_redis_password(password.expose());
            }
            let sentinel_login = Credentials::read(&options.sentinel_login)?;
            if let Some(user) = &sentinel_login.user {
                builder = builder.set_client_to_sentinel_username(user);
            }
            if let Some(password) = &sentinel_login.password {
                builder = builder.set_client_to_sentinel_password(password.expose());
            }
            if let Some(certificates) = certificates {
                builder = builder
                    .set_client_to_redis_tls_mode(TlsMode::Secure)
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_tls_mode(TlsMode::Secure)
                    .set_client_to_sentinel_certificates(certificates);
            }
            let connection = builder
                .build()?
                .get_async_connection_with_config(&config(options, lost))
                .await?;
            Ok(Connection::Single(connection))
        }
        Target::Cluster(nodes) => {
            let nodes = nodes.iter().map(|node| info(node, options, &login));
            let nodes = nodes.collect::<RedisResult<Vec<_>>>()?;
            // The crate waits between retries for longer than anybody here waits for an answer; a
            // redirection needs one.
            let mut builder = ClusterClient::builder(nodes)
                .retries(CLUSTER_RETRIES)
                .min_retry_wait(1)
                .max_retry_wait(CLUSTER_RETRY_WAIT_MILLIS)
                .connection_timeout(options.connect_timeout.into())
                .response_timeout(options.silence.into());
            if let Some(user) = &login.user {
                builder = builder.username(user);
            }
            if let Some(password) = &login.password {
                builder = builder.password(password.expose());
            }
            if let Some(certificates) = certificates {
                builder = builder.tls(TlsMode::Secure).certs(certificates);
            }
            let connection = builder.build()?.get_async_connection().await?;
            Ok(Connection::Cluster(connection))
        }
    }
}

/// A primary that hands over sends callers to its replica, and the replica may send them back until
/// it knows. Each caller has a deadline of its own, long before these are used up.
const CLUSTER_RETRIES: u32 = 10;
const CLUSTER_RETRY_WAIT_MILLIS: u64 = 20;

fn config(options: &RedisOptions, lost: &Arc<Notify>) -> AsyncConnectionConfig {
    let lost = Arc::clone(lost);
    AsyncConnectionConfig::new()
        .set_push_sender(move |push: PushInfo| -> Result<(), ()> {
            if push.kind == PushKind::Disconnection {
                lost.notify_one();
            }
            Ok(())
        })
        .set_connection_timeout(Some(Duration::from(options.connect_timeout)))
        // Each call has its own.
        .set_response_timeout(None)
}

fn addr(address: &Address, options: &RedisOptions) -> ConnectionAddr {
    match address {
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        Address::Tcp(host, port) if options.tls.is_some() => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: false,
            tls_params: None,
        },
        Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
    }
}

fn info(
    address: &Address,
    options: &RedisOptions,
    login: &Credentials,
) -> RedisResult<ConnectionInfo> {
    let mut redis = RedisConnectionInfo::default()
        .set_db(options.database)
        .set_lib_name("porteiro", env!("CARGO_PKG_VERSION"));
    if !options.is_cluster() {
        // The one that tells of a lost connection while nothing is asked.
        redis = redis.set_protocol(ProtocolVersion::RESP3);
    }
    if let Some(user) = &login.user {
        redis = redis.set_username(user);
    }
    if let Some(password) = &login.password {
        redis = redis.set_password(password.expose());
    }
    let info = addr(address, options).into_connection_info()?;
    Ok(info.set_redis_settings(redis))
}

/// User and password as they are now.
struct Credentials {
    user: Option<String>,
    password: Option<Secret>,
}

impl Credentials {
    fn read(login: &Login) -> RedisResult<Self> {
        let line = |path| -> RedisResult<String> {
            let text = fs::read_to_string(path).map_err(|error| unreadable(&error))?;
            Ok(text.trim_end_matches(['\r', '\n']).to_owned())
        };
        let user = login.user_file.as_ref().map(line).transpose()?;
        let password = login.password_file.as_ref().map(line).transpose()?;
        Ok(Self {
            user: user.or_else(|| login.user.clone()),
            password: password.map(Secret::new).or_else(|| login.password.clone()),
        })
    }
}

fn certificates(tls: &Tls) -> RedisResult<TlsCertificates> {
    // Whoever came first has chosen; all of them are fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |path| fs::read(path).map_err(|error| unreadable(&error));
    let identity = tls.identity.as_ref();
    Ok(TlsCertificates {
        root_cert: tls.authority.as_ref().map(read).transpose()?,
        client_tls: identity
            .map(|(certificate, key)| -> RedisResult<_> {
                Ok(redis::ClientTlsConfig {
                    client_cert: read(certificate)?,
                    client_key: read(key)?,
                })
            })
            .transpose()?,
    })
}

fn unreadable(error: &io::Error) -> RedisError {
    RedisError::from((
        ErrorKind::InvalidClientConfig,
        "a credential or certificate file cannot be read",
        error.to_string(),
    ))
}
