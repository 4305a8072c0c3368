//! One call on the wire: HTTP/2 directly, without a client library above it.

use std::fmt;

use bytes::{Buf as _, Bytes};
use h2::{RecvStream, client::ResponseFuture, client::SendRequest};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version, header};

use crate::{
    bench::target::Target,
    model::time::Span,
    proto::{
        envoy::service::ratelimit::v3::rate_limit_response::Code,
        porteiro::v1::acquire_response::Decision,
    },
};

/// Answers longer than this are not read to their end.
const MAX_ANSWER: usize = 4 << 20;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server answered with a gRPC status other than OK.
    Grpc(tonic::Code),
    /// The server, or something in front of it, answered with an HTTP status other than 200.
    Http(StatusCode),
    /// The stream or the connection broke.
    Connection,
    /// There was no connection.
    NoConnection,
    /// The server leaves, and says that it has not seen the call (RFC 9113, 6.8).
    NotBegun,
    /// What came is not a gRPC answer of the expected message.
    Malformed,
    /// The server did not take a lease back.
    NotReleased,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grpc(code) => write!(f, "grpc {code:?}"),
            Self::Http(status) => write!(f, "http {}", status.as_u16()),
            Self::Connection => f.write_str("connection"),
            Self::NoConnection => f.write_str("no connection"),
            Self::NotBegun => f.write_str("not begun"),
            Self::Malformed => f.write_str("malformed answer"),
            Self::NotReleased => f.write_str("lease not released"),
        }
    }
}

/// The headers of a call; the same for all.
#[derive(Clone, Debug)]
pub(super) struct Head {
    uri: Uri,
    headers: HeaderMap,
}

impl Head {
    /// Headers for a method, given as `/package.Service/Method`.
    pub(super) fn new(target: &Target, method: &'static str, deadline: Option<Span>) -> Self {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        parts.authority = Some(target.authority().clone());
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static(method));
        let mut headers = HeaderMap::new();
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        let grpc = HeaderValue::from_static("application/grpc");
        headers.insert(header::CONTENT_TYPE, grpc);
        let agent = concat!("porteiro-bench/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        if let Some(deadline) = deadline {
            headers.insert("grpc-timeout", timeout(deadline));
        }
        Self {
            // All three parts are there.
            uri: Uri::from_parts(parts).unwrap_or_default(),
            headers,
        }
    }

    fn request(&self) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// At most eight digits and a unit.
fn timeout(span: Span) -> HeaderValue {
    let micros = span.as_nanos().div_ceil(1_000);
    let text = if micros <= 99_999_999 {
        format!("{micros}u")
    } else {
        format!("{}m", span.as_millis_up().min(99_999_999))
    };
    // Digits and a letter are always a header value.
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("99999999S"))
}

/// Writes the call to the connection's buffer. The connection must have said that it is ready.
pub(super) fn send(
    connection: &mut SendRequest<Bytes>,
    head: &Head,
    message: Bytes,
) -> Result<ResponseFuture, h2::Error> {
    let (answer, mut stream) = connection.send_request(head.request(), false)?;
    stream.send_data(message, true)?;
    Ok(answer)
}

/// Reads the answer to its end.
pub(super) async fn answer<M: prost::Message + Default>(
    answer: ResponseFuture,
) -> Result<M, Failure> {
    let answer = answer.await.map_err(broken)?;
    let (head, mut body) = answer.into_parts();
    if head.status != StatusCode::OK {
        return Err(Failure::Http(head.status));
    }
    if let Some(code) = status(&head.headers) {
        // An answer without a message carries its status here. OK without a message is none.
        return Err(failure(code));
    }
    let message = read(&mut body).await?;
    let trailers = body.trailers().await.map_err(broken)?;
    match trailers.as_ref().and_then(status) {
        Some(tonic::Code::Ok) => decode(message).ok_or(Failure::Malformed),
        Some(code) => Err(failure(code)),
        None => Err(Failure::Malformed),
    }
}

/// Whatever broke a stream or a connection.
fn broken(error: h2::Error) -> Failure {
    let leaves = error.is_go_away() && error.is_remote();
    let not_begun = leaves && error.reason() == Some(h2::Reason::NO_ERROR);
    drop(error);
    if not_begun {
        Failure::NotBegun
    } else {
        Failure::Connection
    }
}

fn failure(code: tonic::Code) -> Failure {
    match code {
        tonic::Code::Ok => Failure::Malformed,
        code => Failure::Grpc(code),
    }
}

fn status(headers: &HeaderMap) -> Option<tonic::Code> {
    let value = headers.get("grpc-status")?;
    Some(tonic::Code::from_bytes(value.as_bytes()))
}

async fn read(body: &mut RecvStream) -> Result<Bytes, Failure> {
    let mut whole = Bytes::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(broken)?;
        // The window is given back at once: it would take a broken stream to refuse.
        let _ = body.flow_control().release_capacity(piece.len());
        if whole.is_empty() {
            whole = piece;
        } else if whole.len() + piece.len() > MAX_ANSWER {
            return Err(Failure::Malformed);
        } else {
            whole = [whole, piece].concat().into();
        }
    }
    Ok(whole)
}

/// The message of a body that holds exactly one, not compressed.
fn decode<M: prost::Message + Default>(mut body: Bytes) -> Option<M> {
    let compressed = body.try_get_u8().ok()? != 0;
    let length = body.try_get_u32().ok()?;
    let complete = u32::try_from(body.len()) == Ok(length);
    if compressed || !complete {
        return None;
    }
    M::decode(body).ok()
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// OK, or a lease.
    Passed,
    /// Over the limit.
    Refused,
    /// Something that is neither.
    Other,
}

/// Of a `RateLimitResponse` only what is counted: the rest is skipped without being taken apart.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Overall {
    /// `overall_code`.
    #[prost(int32, tag = "1")]
    code: i32,
}

impl Overall {
    pub(super) fn answer(self) -> Answer {
        match Code::try_from(self.code) {
            Ok(Code::Ok) => Answer::Passed,
            Ok(Code::OverLimit) => Answer::Refused,
            Ok(Code::Unknown) | Err(_) => Answer::Other,
        }
    }
}

/// The same of an `AcquireResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Acquired {
    /// `decision`.
    #[prost(int32, tag = "1")]
    decision: i32,
    /// What has to be released; empty when there is nothing.
    #[prost(string, tag = "2")]
    pub(super) lease_id: String,
}

impl Acquired {
    pub(super) fn answer(&self) -> Answer {
        match Decision::try_from(self.decision) {
            Ok(Decision::Granted | Decision::Replayed) => Answer::Passed,
            Ok(Decision::Refused | Decision::Never) => Answer::Refused,
            _ => Answer::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_at_most_eight_digits() {
        assert_eq!(timeout(Span::from_millis(20)), "20000u");
        assert_eq!(timeout(Span::from_secs(99)), "99000000u");
        assert_eq!(timeout(Span::from_secs(100)), "100000m");
        assert_eq!(timeout(Span::MAX), "99999999m");
    }

    #[test]
    fn a_body_is_one_whole_message() {
        let code =
            |body: &'static [u8]| decode::<Overall>(Bytes::from_static(body)).map(|m| m.code);
        assert_eq!(code(&[0, 0, 0, 0, 2, 8, 2]), Some(2));
        // An unknown field after it, and before it.
        assert_eq!(code(&[0, 0, 0, 0, 6, 8, 2, 18, 2, 8, 1]), Some(2));
        assert_eq!(code(&[0, 0, 0, 0, 6, 18, 2, 8, 1, 8, 2]), Some(2));
        assert_eq!(code(&[0, 0, 0, 0, 0]), Some(0));
        for broken in [
            &[][..],
            &[0, 0, 0],
            &[0, 0, 0, 0, 3, 8, 2],
            &[0, 0, 0, 0, 1, 8, 2],
            &[1, 0, 0, 0, 2, 8, 2],
            &[0, 0, 0, 0, 1, 8],
        ] {
            assert_eq!(code(broken), None, "{broken:?}");
        }
    }
}
