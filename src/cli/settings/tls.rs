//! Certificates of the listeners, by our settings or by the reference's variables.

use std::path::PathBuf;

use super::{source::Source, values};
use crate::server::{Doors, TlsOptions};

/// None: plain text everywhere.
pub(super) fn tls(source: &mut Source<'_>) -> Option<TlsOptions> {
    let doors = source.take_ours("tls-on", doors);
    // The reference has one switch, for gRPC, and looks at its files only when it is on.
    let theirs = source.take_variable("GRPC_SERVER_USE_TLS", values::boolean) == Some(true);
    let path = |source: &mut Source<'_>, name: &'static str| -> Option<PathBuf> {
        if theirs {
            source.take(name, values::readable)
        } else {
            source.take_ours(name, values::readable)
        }
    };
    let problems = source.problems();
    let certificate = path(source, "tls-cert");
    let key = path(source, "tls-key");
    let client_roots = path(source, "tls-client-ca");
    let client_names = if theirs {
        source.take("tls-client-san", names)
    } else {
        source.take_ours("tls-client-san", names)
    };
    if source.problems() > problems {
        return None;
    }
    let wanted = theirs || doors.is_some() || client_roots.is_some() || client_names.is_some();
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if !wanted => return None,
        _ => {
            source.problem("TLS needs both --tls-cert and --tls-key".to_owned());
            return None;
        }
    };
    if client_names.is_some() && client_roots.is_none() {
        source.problem("--tls-client-san says nothing without --tls-client-ca".to_owned());
    }
    Some(TlsOptions {
        certificate,
        key,
        client_roots,
        client_names: client_names.unwrap_or_default(),
        doors: doors.unwrap_or(Doors {
            grpc: true,
            ..Doors::default()
        }),
    })
}

fn doors(text: &str) -> Result<Doors, &'static str> {
    let mut doors = Doors::default();
    for name in text.split(',') {
        match name.trim() {
            "grpc" => doors.grpc = true,
            "http" => doors.http = true,
            "admin" => doors.admin = true,
            "metrics" => doors.metrics = true,
            _ => return Err("want a list of grpc, http, admin and metrics"),
        }
    }
    Ok(doors)
}

/// Names of certificates: DNS in lower case, URIs as they are.
pub(super) fn names(text: &str) -> Result<Vec<String>, &'static str> {
    let name = |name: &str| {
        let name = name.trim();
        let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic() && c != '*');
        if !plain {
            return Err("want names, DNS or URI, without wildcards");
        }
        Ok(if name.contains("://") {
            name.to_owned()
        } else {
            name.to_ascii_lowercase()
        })
    };
    text.split(',').map(name).collect()
}
