//! Who may come near the admin listener, and what only some clients may.

use std::fs;

use super::{Settings, source::Source, tls};
use crate::{api::privileges::Privileges, model::secret::Secret, server::Address};

/// Shorter ones are guessed.
const SHORTEST_TOKEN: usize = 16;

/// Reads a token from its file; it is not shown, whatever is wrong with it.
pub(super) fn token(path: &str) -> Result<Secret, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let text = text.trim();
    if text.len() < SHORTEST_TOKEN || !text.chars().all(|c| c.is_ascii_graphic()) {
        return Err(format!(
            "want a file with a token of at least {SHORTEST_TOKEN} printable ASCII characters"
        ));
    }
    Ok(Secret::new(text))
}

pub(super) fn privileges(source: &mut Source<'_>) -> Privileges {
    let names = source
        .take("privileged-san", tls::names)
        .unwrap_or_default();
    let token = source.take("privileged-token-file", token);
    let restricted = source.take("restrict", |text| {
        let mut privileges = Privileges::default();
        for name in text.split(',') {
            match name.trim() {
                "refunds" => privileges.refunds = true,
                "resets" => privileges.resets = true,
                "overrides" => privileges.overrides = true,
                _ => return Err("want a list of refunds, resets and overrides"),
            }
        }
        Ok(privileges)
    });
    Privileges {
        names,
        token,
        ..restricted.unwrap_or_default()
    }
}

/// What several settings say together.
pub(super) fn check(settings: &mut Settings, source: &mut Source<'_>) {
    let server = &settings.server;
    let tls = server.tls.as_ref().filter(|tls| tls.client_roots.is_some());
    if !settings.privileges.names.is_empty() && tls.is_none() && source.problems() == 0 {
        let text = "--privileged-san says nothing without --tls-client-ca";
        source.problem(text.to_owned());
    }
    let is_guarded = server.admin_token.is_some() || tls.is_some_and(|tls| tls.doors.admin);
    if settings.admin.is_local() || is_guarded {
        return;
    }
    let admin = &settings.admin;
    if let Some((given_as, _)) = source.ours("admin") {
        source.problem(format!(
            "{given_as}={admin}: who can reach it can reset limits; beyond loopback it wants \
             --admin-token-file, or --tls-on admin with --tls-client-ca"
        ));
    } else if let Address::Tcp { port, .. } = *admin {
        // The reference opens it to everybody. A deployment that came from there starts all the
        // same, and closed.
        settings.warnings.push(format!(
            "DEBUG_HOST: the admin listener stays on loopback without --admin-token-file; it would \
             have been {admin}"
        ));
        settings.admin = Address::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        };
    }
}
