//! What only some callers may do: refunds, resets, overrides of limits.
//!
//! A caller is known by a name in its TLS certificate, or by a token in `authorization: Bearer …`.

use std::sync::Arc;

use http::Extensions;
use tonic::{Request, Status};

use crate::{
    model::secret::Secret, proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor,
};

/// The names in the certificate of who calls; an extension of requests.
#[derive(Clone, Debug)]
pub struct Caller(pub Arc<[String]>);

/// What is restricted, and to whom. By default nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// `is_negative_hits`, which gives back hits or a lease.
    pub refunds: bool,
    /// `Reset`.
    pub resets: bool,
    /// `limit` in a descriptor.
    pub overrides: bool,
    /// Names of certificates; DNS names in lower case.
    pub names: Vec<String>,
    /// The token.
    pub token: Option<Secret>,
}

impl Privileges {
    /// Whether the caller is one of those that may everything.
    pub fn holds<T>(&self, request: &Request<T>) -> bool {
        let token = request.metadata().get("authorization");
        self.named(request.extensions())
            || token.is_some_and(|given| is_bearer(given.as_bytes(), self.token.as_ref()))
    }

    fn named(&self, extensions: &Extensions) -> bool {
        extensions
            .get::<Caller>()
            .is_some_and(|caller| caller.0.iter().any(|name| self.names.contains(name)))
    }

    /// Refuses what a caller who `holds` the privileges may and others may not.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` with a text that names what is restricted.
    pub fn check(
        &self,
        descriptors: &[RateLimitDescriptor],
        holds: impl FnOnce() -> bool,
    ) -> Result<(), Status> {
        if !self.refunds && !self.overrides {
            return Ok(());
        }
        let refund = self.refunds && descriptors.iter().any(|wire| wire.is_negative_hits);
        let changed = self.overrides && descriptors.iter().any(|wire| wire.limit.is_some());
        match (refund, changed) {
            (false, false) => Ok(()),
            _ if holds() => Ok(()),
            (true, _) => Err(denied("refunds (is_negative_hits)")),
            (false, true) => Err(denied("overrides (limit in a descriptor)")),
        }
    }

    /// Refuses a reset by others.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`.
    pub fn check_reset<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if !self.resets || self.holds(request) {
            Ok(())
        } else {
            Err(denied("resets"))
        }
    }
}

fn denied(what: &str) -> Status {
    Status::permission_denied(format!("{what} are restricted to privileged clients"))
}

/// Whether the value of an `authorization` field is this bearer token. Takes the same time wherever
/// they differ.
pub fn is_bearer(given: &[u8], token: Option<&Secret>) -> bool {
    let (Some(given), Some(token)) = (given.strip_prefix(b"Bearer "), token) else {
        return false;
    };
    let token = token.expose().as_bytes();
    let differ = given.iter().zip(token).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == token.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

    #[test]
    fn a_token_is_compared_whole() {
        let token = Secret::new("hunter22");
        assert!(is_bearer(b"Bearer hunter22", Some(&token)));
        for wrong in [
            "Bearer hunter2",
            "Bearer hunter222",
            "hunter22",
            "",
            "Bearer ",
        ] {
            assert!(!is_bearer(wrong.as_bytes(), Some(&token)), "{wrong}");
        }
        assert!(!is_bearer(b"Bearer ", None));
    }

    #[test]
    fn each_restriction_stands_alone() {
        let plain = RateLimitDescriptor::default();
        let refund = RateLimitDescriptor {
            is_negative_hits: true,
            ..plain.clone()
        };
        let changed = RateLimitDescriptor {
            limit: Some(RateLimitOverride::default()),
            ..plain.clone()
        };
        for (refunds, overrides) in [(false, false), (false, true), (true, false), (true, true)] {
            let privileges = Privileges {
                refunds,
                overrides,
                ..Privileges::default()
            };
            let denied = |wire: &RateLimitDescriptor| {
                let list = [plain.clone(), wire.clone()];
                privileges.check(&list, || true).unwrap();
                privileges.check(&list, || false).is_err()
            };
            assert!(!denied(&plain));
            assert_eq!(denied(&refund), refunds);
            assert_eq!(denied(&changed), overrides);
        }
    }
}
