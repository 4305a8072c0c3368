//! Rules from a control plane, by our settings or by the reference's variables.

use std::path::PathBuf;

use super::{
    source::Source,
    switch,
    values::{self, pairs, readable},
};
use crate::server::xds::{XdsOptions, XdsTls};

/// Where the reference looks for its control plane.
const THEIR_SERVER: &str = "localhost:18000";

/// None: rules are files.
pub(super) fn xds(source: &mut Source<'_>) -> Option<XdsOptions> {
    // All are read, also where rules are files: what is wrong is said in any case.
    let server = server(source);
    let tls = switch(source, "xds-tls");
    let certificate = source.take("xds-cert", readable);
    let key = source.take("xds-key", readable);
    if certificate.is_some() != key.is_some() {
        source.problem("xds-cert and xds-key belong together: set both or none".to_owned());
    }
    let options = XdsOptions {
        server: server.clone().unwrap_or_default(),
        node_id: source
            .take("xds-node-id", printable)
            .unwrap_or_else(|| "default".to_owned()),
        node_metadata: source
            .take("xds-node-metadata", |text| pairs(text, '='))
            .unwrap_or_default(),
        headers: source
            .take("xds-headers", |text| pairs(text, ':'))
            .unwrap_or_default(),
        tls: tls_settings(source, tls, certificate.zip(key)),
        retry: source
            .take("xds-retry", values::positive_duration)
            .unwrap_or(RETRY),
        retry_max: source
            .take("xds-retry-max", values::positive_duration)
            .unwrap_or(RETRY_MAX),
        max_message: match source.take("xds-max-message", values::bytes) {
            None | Some(0) => MAX_MESSAGE,
            Some(bytes) => bytes,
        },
    };
    server.map(|_| options)
}

const RETRY: std::time::Duration = std::time::Duration::from_secs(1);
const RETRY_MAX: std::time::Duration = std::time::Duration::from_secs(30);
/// As large as the largest rule file.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Our setting alone is enough; the reference's address counts when its type of configuration
/// says so.
fn server(source: &mut Source<'_>) -> Option<String> {
    if let Some(ours) = source.take_ours("xds-server", address) {
        return Some(ours);
    }
    let theirs = source.take_variable("CONFIG_TYPE", |text| match text {
        "FILE" => Ok(false),
        "GRPC_XDS_SOTW" => Ok(true),
        _ => Err("want FILE or GRPC_XDS_SOTW"),
    });
    let url = source.take_variable("CONFIG_GRPC_XDS_SERVER_URL", address);
    (theirs == Some(true)).then(|| url.unwrap_or_else(|| THEIR_SERVER.to_owned()))
}

fn tls_settings(
    source: &mut Source<'_>,
    wanted: bool,
    identity: Option<(PathBuf, PathBuf)>,
) -> Option<XdsTls> {
    let tls = XdsTls {
        authority: source.take("xds-ca", readable),
        identity,
        server_name: source.take("xds-server-name", printable),
    };
    wanted.then_some(tls)
}

/// `HOST:PORT` or a URL, kept as it is written.
fn address(text: &str) -> Result<String, &'static str> {
    let uri = text.parse::<http::Uri>().ok();
    let authority = uri.as_ref().and_then(http::Uri::authority);
    let complete = |authority: &http::uri::Authority| {
        !authority.host().is_empty() && authority.port_u16().is_some()
    };
    if authority.is_some_and(complete) {
        Ok(text.to_owned())
    } else {
        Err("want HOST:PORT")
    }
}

fn printable(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    if text.is_empty() || text.contains(char::is_control) {
        return Err("want a text without control characters");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_has_a_host_and_a_port() {
        for good in ["envoy-gateway:18001", "http://[::1]:1", "https://a.b:443"] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in ["", "envoy-gateway", "a b:1", ":1", "a:b", "/path"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
