//! The connection to the control plane.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tonic::{
    Status,
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::XdsOptions;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// A control plane says nothing for hours; PINGs notice when it is gone.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);

/// TLS to the control plane. Files are read at each attempt, so that new certificates need no
/// restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdsTls {
    /// Who signs the control plane's certificate; none: the roots of the system.
    pub authority: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in its certificate, when it is not the one we connect to.
    pub server_name: Option<String>,
}

/// Connects.
///
/// # Errors
/// `UNAVAILABLE` with what is wrong.
pub(super) async fn channel(options: &XdsOptions) -> Result<Channel, Status> {
    let endpoint = Endpoint::from_shared(url(options))
        .map_err(|error| wrong(&error))?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_ANSWER)
        .keep_alive_while_idle(true);
    let endpoint = match &options.tls {
        None => endpoint,
        Some(tls) => {
            let tls = tls_config(tls).map_err(|error| wrong(&error))?;
            endpoint.tls_config(tls).map_err(|error| wrong(&error))?
        }
    };
    endpoint.connect().await.map_err(|error| wrong(&error))
}

fn url(options: &XdsOptions) -> String {
    match (&options.tls, options.server.contains("://")) {
        (_, true) => options.server.clone(),
        (None, false) => format!("http://{}", options.server),
        (Some(_), false) => format!("https://{}", options.server),
    }
}

fn tls_config(tls: &XdsTls) -> io::Result<ClientTlsConfig> {
    let mut config = ClientTlsConfig::new();
    config = match &tls.authority {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::read(path).map_err(named)
}

/// Says an error with all that it stands on: tonic's own text is only "transport error".
fn wrong(error: &dyn std::error::Error) -> Status {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let cause_text = cause.to_string();
        // Some only repeat what they stand on.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        below = cause.source();
    }
    Status::unavailable(text)
}

/// Adds headers to a stream.
///
/// # Errors
/// `INVALID_ARGUMENT` for what cannot be a header.
pub(super) fn add_headers(
    metadata: &mut MetadataMap,
    headers: &[(String, String)],
) -> Result<(), Status> {
    for (name, value) in headers {
        let no_header = || Status::invalid_argument(format!("{name:?} cannot be sent as a header"));
        let key = AsciiMetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes());
        let value = AsciiMetadataValue::try_from(value.as_str());
        let (Ok(key), Ok(value)) = (key, value) else {
            return Err(no_header());
        };
        metadata.append(key, value);
    }
    Ok(())
}
