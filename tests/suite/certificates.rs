//! Certificates made on the spot, in a folder of the test.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType, date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tempfile::TempDir;

/// An authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pair {
    /// Of a server that asks nobody for a certificate.
    pub(crate) fn server(&self) -> ServerConfig {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap()
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
        Self(issuer.unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// For these names: those with `://` are URIs.
    pub(crate) fn sign(&self, names: &[&str]) -> Pair {
        self.sign_with(names, |_| {})
    }

    /// One that ended long ago.
    pub(crate) fn sign_expired(&self, names: &[&str]) -> Pair {
        self.sign_with(names, |params| {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        })
    }

    fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names
            .iter()
            .map(|name| {
                let text = (*name).try_into().unwrap();
                if name.contains("://") {
                    SanType::URI(text)
                } else {
                    SanType::DnsName(text)
                }
            })
            .collect();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// What a client that trusts this authority connects with.
    pub(crate) fn client(&self, identity: Option<&Pair>, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
                let chain = vec![chain.unwrap()];
                builder.with_client_auth_cert(chain, key.unwrap()).unwrap()
            }
        };
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        Arc::new(config)
    }
}

/// `tls.crt`, `tls.key` and `ca.crt`, as Kubernetes names them.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new(server: &Pair, client_roots: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.replace(server);
        fs::write(folder.roots(), client_roots).unwrap();
        folder
    }

    /// Writes another certificate and its key over the old ones.
    pub(crate) fn replace(&self, server: &Pair) {
        for (path, text) in [
            (self.certificate(), &server.certificate),
            (self.key(), &server.key),
        ] {
            let beside = path.with_extension("new");
            fs::write(&beside, text).unwrap();
            fs::rename(beside, path).unwrap();
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.path().join("tls.crt")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.path().join("tls.key")
    }

    pub(crate) fn roots(&self) -> PathBuf {
        self.path().join("ca.crt")
    }
}
