//! TLS of the listeners: which certificates, who may come in, and new files while connections go on.
//!
//! The files are read at start and again whenever they change ([`mod@rotate`]). New handshakes use the
//! new ones; connections that are open keep what they agreed on. Sessions are never resumed: a
//! resumed one would pass without its certificate being looked at again.

mod clients;
mod files;
mod plain;
mod rotate;

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

pub(super) use self::{
    clients::names,
    plain::{FIRST_BYTE, turn_away},
    rotate::rotate,
};

/// Certificates of the listeners, and who may come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM with our certificate and those between it and the root.
    pub certificate: PathBuf,
    /// PEM with its key.
    pub key: PathBuf,
    /// PEM with the roots that a client's certificate must come from; the system's roots never
    /// count. None: clients show no certificate.
    pub client_roots: Option<PathBuf>,
    /// Names (DNS or URI of the subject alternative names), one of which a client's certificate
    /// must carry; DNS names in lower case. Empty: whatever the roots signed. There are no
    /// wildcards.
    pub client_names: Vec<String>,
    /// The listeners that speak TLS.
    pub doors: Doors,
}

/// A choice of listeners.
#[expect(clippy::struct_excessive_bools, reason = "one per listener")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doors {
    /// gRPC.
    pub grpc: bool,
    /// `/json` and health.
    pub http: bool,
    /// Admin.
    pub admin: bool,
    /// Metrics on a listener of their own.
    pub metrics: bool,
}

/// A file that cannot be used, or files that do not go together.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One file.
    #[error("{}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// All of them are fine, but not together.
    #[error("{} with {}: {why}", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why they do not go together.
        why: rustls::Error,
    },
}

/// What handshakes are made with at the moment.
pub(super) struct Tls {
    options: TlsOptions,
    present: ArcSwap<Present>,
}

/// One reading of the files.
struct Present {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files. Blocking.
    pub(super) fn load(options: TlsOptions) -> Result<Self, TlsError> {
        let present = ArcSwap::from_pointee(Present::read(&options)?);
        Ok(Self { options, present })
    }

    /// Reads the files again; what is wrong changes nothing. Blocking.
    fn reload(&self) -> Result<(), TlsError> {
        self.present.store(Arc::new(Present::read(&self.options)?));
        Ok(())
    }

    /// For a gRPC connection.
    pub(super) fn grpc(&self) -> TlsAcceptor {
        Arc::clone(&self.present.load().grpc).into()
    }

    /// For an HTTP/1 connection.
    pub(super) fn http(&self) -> TlsAcceptor {
        Arc::clone(&self.present.load().http).into()
    }

    pub(super) fn doors(&self) -> Doors {
        self.options.doors
    }

    /// The files that are read.
    fn paths(&self) -> Vec<PathBuf> {
        let options = &self.options;
        let pair = [&options.certificate, &options.key];
        let all = pair.into_iter().chain(&options.client_roots);
        all.cloned().collect()
    }
}

impl Present {
    fn read(options: &TlsOptions) -> Result<Self, TlsError> {
        let config = files::config(options)?;
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Ok(Self {
            grpc: speaking(b"h2"),
            http: speaking(b"http/1.1"),
        })
    }
}
