//! The lease service in this process over rules of the test's, without waiting for anything.

use std::{collections::BTreeMap, sync::Arc};

use porteiro::{
    api::{bounds::Bounds, limiter::Limiter},
    model::time::{Span, Timestamp},
    proto::{
        envoy::extensions::common::ratelimit::v3::{
            RateLimitDescriptor, rate_limit_descriptor::Entry,
        },
        porteiro::v1::{
            AcquireRequest, AcquireResponse, Item, LeaseEnd, ReleaseRequest,
            limiter_service_server::LimiterService,
        },
    },
};
use tonic::Request;

use crate::support::{self, Service};

/// The service and the hand on its clock, which begins 20 seconds before the end of a minute.
pub(super) struct Desk {
    pub(super) service: Service,
    pub(super) limiter: Limiter,
}

impl Desk {
    /// Over the text of one rule file.
    pub(super) fn over(rules: &str) -> Self {
        let files = BTreeMap::from([("rules.yaml".to_owned(), rules.to_owned())]);
        let service = support::service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000_000));
        let limiter = Limiter::new(Arc::clone(&service.engine), Bounds::default());
        Self { service, limiter }
    }

    pub(super) fn acquire(&self, request: AcquireRequest) -> AcquireResponse {
        let answer = support::now(self.limiter.acquire(Request::new(request)));
        answer.unwrap().into_inner()
    }

    pub(super) fn release(&self, end: LeaseEnd) {
        let request = ReleaseRequest {
            leases: vec![end],
            holder: None,
        };
        support::now(self.limiter.release(Request::new(request))).unwrap();
    }

    /// Time passes, and somebody looks.
    pub(super) fn pass(&self, span: Span) {
        self.service.clock.advance(span);
        let now = self.service.clock.now();
        self.service.engine.leases().turn(now);
    }
}

pub(super) fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry {
            key: key.into(),
            value: value.into(),
        }],
        ..RateLimitDescriptor::default()
    }
}

/// A request of domain `d`.
pub(super) fn request(items: Vec<Item>) -> AcquireRequest {
    AcquireRequest {
        domain: "d".into(),
        items,
        ..AcquireRequest::default()
    }
}
