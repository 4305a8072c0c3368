//! gRPC's framing of one message in, one message out.
//!
//! tonic can do this too, and does it for every other service. Its codec is made for streams:
//! buffers of 8 KiB each way, boxed decoders and bodies, a second look at the headers. For the one
//! call that is made all the time, that is a quarter of the instructions of a whole call.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use prost::Message;
use tonic::{Extensions, Status, metadata::MetadataMap};

/// Compressed flag and length before each message.
const PREFIX: usize = 5;

/// Answers one call of a unary method.
pub(super) async fn unary<M, A, F>(
    request: Request<Incoming>,
    max_message: usize,
    method: impl FnOnce(tonic::Request<M>) -> F,
) -> Result<Response<Body>, Infallible>
where
    M: Message + Default,
    A: Message,
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    let (head, mut body) = request.into_parts();
    let answer = match read(&mut body, max_message).await {
        Ok(message) => {
            let metadata = MetadataMap::from_headers(head.headers);
            method(tonic::Request::from_parts(
                metadata,
                Extensions::default(),
                message,
            ))
            .await
        }
        Err(status) => Err(status),
    };
    Ok(match answer {
        Ok(answer) => respond(answer),
        Err(status) => status.into_http::<()>().map(|()| Body::Empty),
    })
}

/// The one message of a request, to its very end.
async fn read<M: Message + Default>(body: &mut Incoming, max_message: usize) -> Result<M, Status> {
    // Nearly always the whole message comes in one piece, and nothing is copied.
    let mut bytes = next(body).await?.unwrap_or_default();
    while let Some(more) = missing(&bytes, max_message)? {
        let Some(piece) = next(body).await? else {
            return Err(Status::invalid_argument(format!(
                "the request ended {more} bytes early"
            )));
        };
        let mut longer = BytesMut::from(bytes);
        longer.put(piece);
        bytes = longer.freeze();
    }
    let mut rest = bytes.len();
    while rest <= PREFIX + max_message {
        let Some(piece) = next(body).await? else {
            break;
        };
        rest += piece.len();
    }
    bytes.advance(PREFIX);
    if rest > PREFIX + bytes.len() {
        return Err(Status::invalid_argument(
            "more than one message was sent to a unary method",
        ));
    }
    M::decode(bytes).map_err(|error| {
        Status::invalid_argument(format!("the message cannot be decoded: {error}"))
    })
}

/// How many bytes are still to come, at least; none when the message is whole.
fn missing(bytes: &Bytes, max_message: usize) -> Result<Option<usize>, Status> {
    let Some((prefix, message)) = bytes.split_first_chunk::<PREFIX>() else {
        return Ok(Some(PREFIX - bytes.len()));
    };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(Status::unimplemented(
            "compressed messages are not understood; send them as they are",
        ));
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > max_message {
        return Err(Status::resource_exhausted(format!(
            "the message has {length} bytes, more than max-message, {max_message} bytes"
        )));
    }
    Ok((message.len() < length).then(|| length - message.len()))
}

/// The next piece of a body; none at its end. Trailers mean nothing here.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    loop {
        if body.is_end_stream() {
            return Ok(None);
        }
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            // The caller is gone, or its connection broke; nobody reads this.
            Some(Err(error)) => {
                return Err(Status::cancelled(format!("the request broke off: {error}")));
            }
        }
    }
}

fn respond<A: Message>(answer: tonic::Response<A>) -> Response<Body> {
    let (metadata, message, _extensions) = answer.into_parts();
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    // What we say is far below 4 GiB.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    let mut response = Response::new(Body::Message(bytes.freeze()));
    let headers = response.headers_mut();
    *headers = metadata.into_headers();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Body of an answer.
#[derive(Debug)]
pub(super) enum Body {
    /// One framed message, then the trailers of success.
    Message(Bytes),
    /// Only the trailers of success are left.
    Trailers,
    /// Nothing: the status was in the head.
    Empty,
    /// What tonic made.
    Tonic(tonic::body::Body),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self {
            Self::Message(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Trailers;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Trailers => {
                *self = Self::Empty;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Self::Empty => Poll::Ready(None),
            Self::Tonic(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(_) | Self::Trailers => false,
            Self::Empty => true,
            Self::Tonic(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            // An exact one would become a content-length, which gRPC has no use for.
            Self::Message(_) | Self::Trailers => SizeHint::default(),
            Self::Empty => SizeHint::with_exact(0),
            Self::Tonic(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn missing_of(bytes: &[u8]) -> Result<Option<usize>, Code> {
        missing(&Bytes::copy_from_slice(bytes), 10).map_err(|status| status.code())
    }

    #[test]
    fn a_prefix_tells_what_is_missing() {
        assert_eq!(missing_of(b""), Ok(Some(5)));
        assert_eq!(missing_of(&[0, 0, 0]), Ok(Some(2)));
        assert_eq!(missing_of(&[0, 0, 0, 0, 3, 7]), Ok(Some(2)));
        assert_eq!(missing_of(&[0, 0, 0, 0, 3, 7, 7, 7]), Ok(None));
        assert_eq!(missing_of(&[0, 0, 0, 0, 0]), Ok(None));
        assert_eq!(missing_of(&[0, 0, 0, 0, 11]), Err(Code::ResourceExhausted));
        assert_eq!(
            missing_of(&[0, 255, 255, 255, 255]),
            Err(Code::ResourceExhausted)
        );
        assert_eq!(missing_of(&[1, 0, 0, 0, 0]), Err(Code::Unimplemented));
    }
}
