//! What every call of a connection passes: how many may wait, and whether its answer is fetched.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    service::Service,
};
use tonic::{Code, Status, body::Body, metadata::MetadataMap};

use super::{
    pulse::Pulse,
    stats::{Calls, Stats},
};
use crate::{api::privileges::Caller, store::connections::Connection};

/// How many calls of a worker may wait: for a store, or for a permit. A decision in memory never
/// waits. Only its worker counts here.
///
/// A connection with as many waiting as places are left gets no more, so that one alone takes half
/// of the places, two take a third each, and there is always room for who comes next (the dynamic
/// threshold of Choudhury and Hahne, 1998, for queues that share memory, with α = 1).
#[derive(Debug)]
pub(super) struct Gate {
    waiting: AtomicUsize,
    most: usize,
    stats: Arc<Stats>,
    calls: Arc<Calls>,
}

impl Gate {
    /// Of the worker with this number.
    pub(super) fn new(most: usize, stats: Arc<Stats>, worker: usize) -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            most,
            calls: stats.calls_of(worker),
            stats,
        }
    }

    /// Whether a connection has a place for one more.
    fn has_room_for(&self, connection: &Pulse) -> bool {
        let left = self.most.saturating_sub(self.waiting.load(Relaxed));
        let has = connection.waiting();
        left > 0 && (has == 0 || has < left)
    }
}

/// The services of one connection.
#[derive(Debug)]
pub(super) struct Guard<S> {
    pub(super) service: S,
    pub(super) gate: Arc<Gate>,
    pub(super) pulse: Arc<Pulse>,
    /// Who showed a certificate.
    pub(super) caller: Option<Caller>,
    /// For calls whose leases hang on their connection.
    pub(super) link: Option<Arc<Connection>>,
}

impl<S> Service<Request<Incoming>> for Guard<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Fetched>;
    type Error = Infallible;
    type Future = Guarded<S::Future>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(caller) = &self.caller {
            request.extensions_mut().insert(caller.clone());
        }
        if let Some(link) = self.link.as_ref().filter(|link| link.is_wanted()) {
            request.extensions_mut().insert(Arc::clone(link));
        }
        self.gate.calls.one_more();
        self.pulse.call_begins();
        // Load balancers would take an overloaded server for a dead one.
        let is_health = request.uri().path().starts_with("/grpc.health.v1.Health/");
        Guarded {
            place: if is_health { Place::Free } else { Place::New },
            gate: Arc::clone(&self.gate),
            open: Some(Open(Arc::clone(&self.pulse))),
            future: Some(self.service.call(request)),
        }
    }
}

/// Counts a call as open until it is dropped.
#[derive(Debug)]
struct Open(Arc<Pulse>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.call_ends();
    }
}

#[derive(Debug)]
enum Place {
    /// Not begun.
    New,
    /// Not begun, and hyper was asked to see whether it is still wanted.
    Wanted,
    /// Waits, and is counted for as long as this lives.
    Waiting { _counted: Waiting },
    /// Not to be counted.
    Free,
}

/// Counts a call as waiting, of its worker and of its connection, until it is dropped.
#[derive(Debug)]
struct Waiting {
    gate: Arc<Gate>,
    connection: Arc<Pulse>,
}

impl Waiting {
    fn new(gate: &Arc<Gate>, connection: &Arc<Pulse>) -> Self {
        gate.waiting.fetch_add(1, Relaxed);
        connection.wait_begins();
        Self {
            gate: Arc::clone(gate),
            connection: Arc::clone(connection),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gate.waiting.fetch_sub(1, Relaxed);
        self.connection.wait_ends();
    }
}

/// One call on its way to an answer.
#[derive(Debug)]
pub(super) struct Guarded<F> {
    place: Place,
    gate: Arc<Gate>,
    open: Option<Open>,
    future: Option<F>,
}

impl<F> Future for Guarded<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<Fetched>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let is_new = matches!(this.place, Place::New | Place::Wanted);
        // After a stall there are calls that were given up already. hyper looks for that where an
        // answer is not ready at once; `Batch` polls again right away.
        if matches!(this.place, Place::New) && this.is_behind() {
            this.place = Place::Wanted;
            return Poll::Pending;
        }
        // Nothing was done for it yet, so that it can be tried elsewhere.
        if is_new && !this.has_room() {
            this.place = Place::Free;
            this.future = None;
        }
        let response = if let Some(future) = &mut this.future {
            match Pin::new(future).poll(cx) {
                Poll::Ready(Ok(response)) => response,
                Poll::Pending => {
                    if is_new && let Some(Open(connection)) = &this.open {
                        let counted = Waiting::new(&this.gate, connection);
                        this.place = Place::Waiting { _counted: counted };
                    }
                    return Poll::Pending;
                }
            }
        } else {
            this.gate.stats.shed.fetch_add(1, Relaxed);
            shed().into_http()
        };
        let open = this.open.take();
        Poll::Ready(Ok(response.map(|body| Fetched::new(body, open))))
    }
}

impl<F> Guarded<F> {
    fn is_behind(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.0.is_behind())
    }

    fn has_room(&self) -> bool {
        let open = self.open.as_ref();
        open.is_none_or(|open| self.gate.has_room_for(&open.0))
    }
}

/// gRPC clients with a retry policy wait this long before they try again.
const PUSHBACK_MILLIS: &str = "100";

fn shed() -> Status {
    let mut metadata = MetadataMap::new();
    if let Ok(pushback) = PUSHBACK_MILLIS.parse() {
        metadata.insert("grpc-retry-pushback-ms", pushback);
    }
    let text = "overloaded: max-concurrent-calls are waiting already, or this connection's share";
    Status::with_metadata(Code::Unavailable, text, metadata)
}

/// The body of an answer; says when a piece of it waits to be fetched.
#[derive(Debug)]
pub(super) struct Fetched {
    body: Body,
    open: Option<Open>,
    owed: bool,
}

impl Fetched {
    fn new(body: Body, open: Option<Open>) -> Self {
        let mut fetched = Self {
            owed: false,
            body,
            open,
        };
        if !fetched.body.is_end_stream() {
            fetched.owe();
        }
        fetched
    }

    fn owe(&mut self) {
        if let Some(open) = &self.open {
            open.0.owes();
            self.owed = true;
        }
    }

    fn settle(&mut self) {
        if let Some(open) = &self.open
            && self.owed
        {
            open.0.fetched();
            self.owed = false;
        }
    }
}

impl HttpBody for Fetched {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.settle();
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_some() && !self.body.is_end_stream() {
            self.owe();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.settle();
    }
}
