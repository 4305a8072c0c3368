//! `POST /json`: the rate limit service for those who speak HTTP only, as the reference offers it.
//!
//! Request and response are the messages of [`envoy_rls`](super::envoy_rls) in proto3 JSON. A
//! refusal is 429, or 503 when a resource that callers share or shedding refused; of several limits
//! the one that takes longest to pass decides, and `statuses` tells them all. `Retry-After` and
//! `Retry-After-Ms` say when to come back.

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    routing::any,
};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions, prost::DecodeError,
};
use tonic::{Request, Status, metadata::MetadataValue};

use crate::{
    api::{
        envoy_rls::{Refusal, Tell},
        privileges::Caller,
    },
    proto::{
        self,
        envoy::service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
            rate_limit_service_server::RateLimitService,
        },
    },
    telemetry::spans::{self, Spans},
};

/// The route. The method is not looked at, as in the reference.
///
/// Calls are recorded with `spans`, if there are any.
pub fn router<R: RateLimitService>(
    service: Arc<R>,
    max_body: usize,
    spans: Option<Arc<Spans>>,
) -> Router {
    Router::new()
        .route("/json", any(answer::<R>))
        .layer(DefaultBodyLimit::max(max_body))
        .with_state((service, spans))
}

async fn answer<R: RateLimitService>(
    State((service, spans)): State<(Arc<R>, Option<Arc<Spans>>)>,
    parts: Parts,
    body: Result<Bytes, BytesRejection>,
) -> Response<Body> {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return text(rejection.status(), rejection.body_text()),
    };
    let request = match read(&body) {
        Ok(request) => request,
        Err(error) => return text(StatusCode::BAD_REQUEST, error),
    };
    let mut request = Request::new(request);
    request.extensions_mut().insert(Tell::Http);
    // Who asks: what some callers may, and others not, depends on it.
    if let Some(caller) = parts.extensions.get::<Caller>() {
        request.extensions_mut().insert(caller.clone());
    }
    let token = parts.headers.get(AUTHORIZATION);
    if let Some(Ok(token)) = token.map(|token| MetadataValue::try_from(token.as_bytes())) {
        request.metadata_mut().insert("authorization", token);
    }
    let span = spans.and_then(|spans| spans.begin(&parts.headers, "/json"));
    let answered = spans::within(span.clone(), service.should_rate_limit(request)).await;
    if let Some(span) = span {
        let failed = answered.as_ref().err();
        span.answered(failed.map_or(tonic::Code::Ok, Status::code));
    }
    match answered {
        Ok(response) => json(response.get_ref(), response.extensions().get().copied()),
        // The reference says 400 whatever went wrong, and clients let that pass or not.
        Err(status) => text(StatusCode::BAD_REQUEST, status.message().to_owned()),
    }
}

/// Descriptors of the two messages, built once.
struct Descriptors {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

static DESCRIPTORS: LazyLock<Option<Descriptors>> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(proto::DESCRIPTORS).ok()?;
    let message = |name| pool.get_message_by_name(name);
    Some(Descriptors {
        request: message("envoy.service.ratelimit.v3.RateLimitRequest")?,
        response: message("envoy.service.ratelimit.v3.RateLimitResponse")?,
    })
});

/// Strict: unknown fields and anything after the object are refused; names in both styles.
fn read(body: &[u8]) -> Result<RateLimitRequest, String> {
    let descriptors = DESCRIPTORS.as_ref().ok_or("bug: no descriptors")?;
    let mut json = serde_json::Deserializer::from_slice(body);
    let message = DynamicMessage::deserialize(descriptors.request.clone(), &mut json)
        .map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    message
        .transcode_to()
        .map_err(|error: DecodeError| error.to_string())
}

fn json(response: &RateLimitResponse, refusal: Option<Refusal>) -> Response<Body> {
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        // HTTP has two words where the protocol has one.
        Code::OverLimit if refusal.is_some_and(|refusal| refusal.others_fault) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut answer = match write(response) {
        Ok(body) => answer_with(status, "application/json", body),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error),
    };
    if let Some(wait) = refusal.and_then(|refusal| refusal.retry_after) {
        let headers = answer.headers_mut();
        headers.insert(RETRY_AFTER, wait.as_secs_up().max(1).into());
        headers.insert(RETRY_AFTER_MS, wait.as_millis_up().max(1).into());
    }
    answer
}

/// [`RETRY_AFTER`] in milliseconds, for clients that come back sooner than a second.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

fn write(response: &RateLimitResponse) -> Result<Vec<u8>, String> {
    let descriptors = DESCRIPTORS.as_ref().ok_or("bug: no descriptors")?;
    let bytes = response.encode_to_vec();
    let message = DynamicMessage::decode(descriptors.response.clone(), &bytes[..])
        .map_err(|error| error.to_string())?;
    let mut body = Vec::new();
    let mut json = serde_json::Serializer::new(&mut body);
    message
        .serialize_with_options(&mut json, &SerializeOptions::new())
        .map_err(|error| error.to_string())?;
    Ok(body)
}

fn text(status: StatusCode, mut text: String) -> Response<Body> {
    text.push('\n');
    answer_with(status, "text/plain; charset=utf-8", text)
}

fn answer_with(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use tonic::{Status, async_trait};

    use super::*;

    /// Answers what its domain says.
    struct Says;

    #[async_trait]
    impl RateLimitService for Says {
        async fn should_rate_limit(
            &self,
            request: Request<RateLimitRequest>,
        ) -> Result<tonic::Response<RateLimitResponse>, Status> {
            let code = match request.get_ref().domain.as_str() {
                "ok" => Code::Ok,
                "over" => Code::OverLimit,
                "unknown" => Code::Unknown,
                domain => return Err(Status::unavailable(format!("no {domain}"))),
            };
            Ok(tonic::Response::new(RateLimitResponse {
                overall_code: code.into(),
                ..RateLimitResponse::default()
            }))
        }
    }

    async fn post(body: &str) -> (u16, String, String) {
        let body = Ok(Bytes::copy_from_slice(body.as_bytes()));
        let (parts, ()) = http::Request::new(()).into_parts();
        let response = answer(State((Arc::new(Says), None)), parts, body).await;
        let kind = response.headers()[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), 4096)
            .await
            .unwrap();
        (status, kind, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn the_overall_code_becomes_a_status() {
        for (domain, status, body) in [
            ("ok", 200, r#"{"overallCode":"OK"}"#),
            ("over", 429, r#"{"overallCode":"OVER_LIMIT"}"#),
            ("unknown", 500, "{}"),
        ] {
            let (got, kind, text) = post(&format!(r#"{{"domain":"{domain}"}}"#)).await;
            assert_eq!((got, text.as_str()), (status, body));
            assert_eq!(kind, "application/json");
        }
    }

    #[tokio::test]
    async fn what_is_wrong_is_400_and_text() {
        for body in [
            "",
            "}",
            "null",
            "[]",
            r#"{"domain":"ok","unknown":1}"#,
            r#"{"domain":"ok"} x"#,
            r#"{"domain":"ok","hits_addend":-1}"#,
            r#"{"domain":"other"}"#,
        ] {
            let (status, kind, text) = post(body).await;
            assert_eq!(status, 400, "{body}: {text}");
            assert!(kind.starts_with("text/plain"), "{body}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(post(&deep).await.0, 400);
        assert_eq!(post(r#"{"domain":"other"}"#).await.2, "no other\n");
    }

    #[test]
    fn both_name_styles_are_read() {
        for json in [
            r#"{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],"isNegativeHits":true,"hitsAddend":"7"}]}"#,
            r#"{"domain":"d","hits_addend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],"is_negative_hits":true,"hits_addend":7}]}"#,
        ] {
            let request = read(json.as_bytes()).unwrap();
            assert_eq!(request.hits_addend, 2);
            let descriptor = &request.descriptors[0];
            assert_eq!(descriptor.entries[0].value, "v");
            assert_eq!(descriptor.hits_addend, Some(7));
            assert!(descriptor.is_negative_hits);
        }
    }
}
