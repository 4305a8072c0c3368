//! [`Verdict`] → `RateLimitResponse`, as a message and in encoded bytes.

use prost::Message as _;

use super::{Answered, RateLimit, Refusal, Tell};
use crate::{
    api::{
        contract::{Contract, add_metadata},
        headers::reference_headers,
        metadata::reference_metadata,
        wire::{self, StatusNumbers, code},
    },
    engine::verdict::{Code, Verdict},
    model::request::Request,
    proto::envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{DescriptorStatus, RateLimit as CurrentLimit},
        },
    },
};

impl RateLimit {
    pub(super) fn response(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        tell: Tell,
    ) -> Answered {
        let mut message = RateLimitResponse::default();
        self.respond(request, verdict, &mut message);
        Answered {
            message,
            refusal: match tell {
                Tell::Envoy => None,
                Tell::Http => Refusal::of(verdict),
            },
        }
    }

    /// Appends the encoded answer: [`RateLimit::respond`] without the message.
    pub(in crate::api) fn write(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        out: &mut Vec<u8>,
    ) {
        wire::write(verdict, out);
        let promises = verdict.domain.is_some_and(|d| !d.answer.is_nothing());
        if promises || self.options.headers.is_some() || self.options.dynamic_metadata {
            let mut more = RateLimitResponse::default();
            self.add_more(request, verdict, &mut more);
            // Messages one after the other are one message. A vector has room for all of it.
            let _ = more.encode(out);
        }
    }

    /// Writes the answer into an empty message.
    pub(in crate::api) fn respond(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        response: &mut RateLimitResponse,
    ) {
        response.overall_code = code(verdict.code).into();
        let statuses = verdict
            .statuses()
            .map(|status| descriptor_status(&StatusNumbers::of(&status)));
        response.statuses.extend(statuses);
        self.add_more(request, verdict, response);
    }

    /// Adds what an answer has besides code and statuses.
    fn add_more(
        &self,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        response: &mut RateLimitResponse,
    ) {
        let ours = verdict.domain.is_some_and(|domain| {
            let answer = &domain.answer;
            let told = verdict.code == Code::OverLimit || answer.pass_headers.has(request);
            answer.headers.reference && told
        });
        let names = match &self.options.headers {
            None if ours => Some(&self.default_names),
            names => names.as_ref(),
        };
        if let Some(names) = names {
            response.response_headers_to_add = reference_headers(names, verdict);
        }
        if self.options.dynamic_metadata {
            response.dynamic_metadata = Some(reference_metadata(request, verdict));
        }
        if verdict
            .domain
            .is_some_and(|domain| !domain.answer.is_nothing())
        {
            keep_contract(request, verdict, response);
        }
    }
}

/// Adds what the domain promised its clients.
fn keep_contract(request: &Request<'_>, verdict: &Verdict<'_>, response: &mut RateLimitResponse) {
    let contract = Contract::new(verdict);
    if verdict.domain.is_some_and(|domain| domain.answer.metadata) {
        let metadata = response.dynamic_metadata.get_or_insert_default();
        add_metadata(contract.as_ref(), verdict, metadata);
    }
    let Some(contract) = contract else {
        return;
    };
    response
        .response_headers_to_add
        .extend(contract.headers(request));
    if let Some((content_type, body)) = contract.body(request) {
        response.raw_body = body;
        response.response_headers_to_add.push(HeaderValue {
            key: "Content-Type".to_owned(),
            value: content_type.to_owned(),
            raw_value: Vec::new(),
        });
    }
}

fn descriptor_status(numbers: &StatusNumbers<'_>) -> DescriptorStatus {
    let mut status = DescriptorStatus {
        code: numbers.code.into(),
        limit_remaining: numbers.remaining,
        ..DescriptorStatus::default()
    };
    if let Some(limit) = &numbers.limit {
        status.current_limit = Some(CurrentLimit {
            name: limit.name.to_owned(),
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.into(),
            unit_multiplier: limit.unit_multiplier,
        });
        let seconds = i64::try_from(limit.reset_seconds).unwrap_or(i64::MAX);
        status.duration_until_reset = Some(prost_types::Duration { seconds, nanos: 0 });
    }
    status
}
