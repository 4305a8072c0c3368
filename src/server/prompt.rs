//! The body of a request that has to be here in time.

use std::{
    error::Error,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tonic::Status;

use super::stats::Stats;
use crate::model::time::{Clock, Span, Timestamp};

/// What finds out that a request came too late.
pub(super) struct Lateness {
    pub(super) clock: Clock,
    pub(super) stats: Arc<Stats>,
}

/// Ends with `DEADLINE_EXCEEDED` when the caller has given up before the request was complete, so
/// that nothing is decided for nobody. Time is looked at only where the body was waited for.
pub(super) struct Prompt {
    pub(super) body: Incoming,
    /// The caller's `grpc-timeout`.
    pub(super) timeout: Option<Span>,
    pub(super) lateness: Arc<Lateness>,
    /// When the body was first asked for and not here.
    pub(super) asked: Option<Timestamp>,
}

impl Body for Prompt {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        let Some(timeout) = this.timeout else {
            return frame.map_err(Into::into);
        };
        if frame.is_pending() && this.asked.is_none() {
            this.asked = Some(this.lateness.clock.now().steady);
        }
        let frame = ready!(frame);
        if let Some(asked) = this.asked
            && asked.until(this.lateness.clock.now().steady) > timeout
        {
            this.timeout = None;
            this.lateness.stats.expired.fetch_add(1, Relaxed);
            let late = Status::deadline_exceeded("the request was complete after its timeout");
            return Poll::Ready(Some(Err(late.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
