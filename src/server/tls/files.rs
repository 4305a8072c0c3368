//! PEM files → what rustls serves with.

use std::{fmt::Display, fs, path::Path, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
};

use super::{TlsError, TlsOptions, clients::Named};

/// Reads the files that the options name. Blocking.
pub(super) fn config(options: &TlsOptions) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&options.certificate)?;
    let key = key(&options.key)?;
    let pair = |why| TlsError::Pair {
        certificate: options.certificate.clone(),
        key: options.key.clone(),
        why,
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match &options.client_roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = clients(roots, &options.client_names, provider)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn clients(
    path: &Path,
    names: &[String],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(path)? {
        roots.add(root).map_err(|error| wrong(path, &error))?;
    }
    let by_roots = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| wrong(path, &error))?;
    Ok(if names.is_empty() {
        by_roots
    } else {
        Arc::new(Named::new(by_roots, names.to_vec()))
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(path, &error))?;
    if certificates.is_empty() {
        return Err(wrong(path, &"there is no certificate in it"));
    }
    Ok(certificates)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => wrong(path, &"there is no private key in it"),
        error => wrong(path, &error),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| wrong(path, &error))
}

fn wrong(path: &Path, why: &dyn Display) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        why: format!("{why}"),
    }
}
