//! What a client asks for.

use std::time::Duration;

use crate::proto::{
    envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    porteiro::v1::{AcquireRequest, Criticality, Holder, Item},
};

/// A request for permits, built step by step.
#[derive(Clone, Debug)]
pub struct Ask(AcquireRequest);

impl Ask {
    /// A request in a domain, with a fresh request id.
    pub fn new(domain: &str) -> Self {
        let request_id: [u8; 16] = rand::random();
        Self(AcquireRequest {
            domain: domain.to_owned(),
            request_id: request_id.to_vec(),
            ..AcquireRequest::default()
        })
    }

    /// One permit of the limit that these entries find.
    #[must_use]
    pub fn item<const N: usize>(self, entries: [(&str, &str); N]) -> Self {
        self.permits(entries, 1)
    }

    /// Several permits of the limit that these entries find.
    #[must_use]
    pub fn permits<const N: usize>(mut self, entries: [(&str, &str); N], permits: u64) -> Self {
        let entry = |(key, value): (&str, &str)| Entry {
            key: key.into(),
            value: value.into(),
        };
        let descriptor = RateLimitDescriptor {
            entries: entries.into_iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        };
        self.0.items.push(Item {
            descriptor: Some(descriptor),
            permits: Some(permits),
            ..Item::default()
        });
        self
    }

    /// Who asks.
    #[must_use]
    pub fn holder(mut self, id: &str, instance: &str) -> Self {
        self.0.holder = Some(Holder {
            id: id.to_owned(),
            instance: instance.to_owned(),
        });
        self
    }

    /// Life of the lease between renewals.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = ttl.try_into().ok();
        self
    }

    /// How long the server may keep the request waiting.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.0.max_wait = wait.try_into().ok();
        self
    }

    /// How bad it is to be refused.
    #[must_use]
    pub fn criticality(mut self, criticality: Criticality) -> Self {
        self.0.set_criticality(criticality);
        self
    }

    /// A request id of the caller's: the same id is the same request.
    #[must_use]
    pub fn request_id(mut self, id: &[u8]) -> Self {
        self.0.request_id = id.to_vec();
        self
    }

    /// The message that is sent.
    pub fn message(&self) -> &AcquireRequest {
        &self.0
    }

    pub(super) fn into_message(self) -> AcquireRequest {
        self.0
    }
}
