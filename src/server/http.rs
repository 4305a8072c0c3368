//! HTTP/1 listeners: `/json` and health for everybody, admin for operators.

use std::{
    convert::Infallible, future::poll_fn, io, pin::pin, sync::Arc, task::Poll, time::Duration,
};

use axum::{Router, body::Body};
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::codegen::Service as _;

use super::{
    carry::Carried,
    handshake,
    listen::{Accepting, Socket},
    pulse::{Pulse, Stall, Watched},
    tls::Tls,
};
use crate::{
    api::privileges::{Caller, is_bearer},
    model::secret::Secret,
};

/// Bounds of an HTTP listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Most open connections of one listener. Default 1024; one more is closed at once.
    pub max_connections: usize,
    /// How long a client may take for the head of a request, and between requests. Default 10 s.
    pub header_timeout: Duration,
    /// How long a request may take from the end of its head to the head of its answer; the
    /// reading of the body is in it. Default 30 s.
    pub request_timeout: Duration,
    /// How long a client may leave its answer unread. Default 30 s.
    pub write_timeout: Duration,
    /// Most bytes in the body of a request. Default 256 KiB: JSON of the largest message.
    pub max_body: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            header_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            max_body: 256 * 1024,
        }
    }
}

/// Most bytes in the head of a request.
const MAX_HEAD: usize = 32 * 1024;

/// How long to wait when the process is out of file descriptors.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// What is served at a listener.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) router: Router,
    /// None: plain text.
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) limits: HttpLimits,
    /// What everything but health is asked for; none: nothing.
    pub(super) token: Option<Secret>,
}

/// Serves until told to stop; then connections finish the request they are at.
pub(super) async fn serve(listener: Accepting, door: Door, stop: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let socket = match accepted {
            Ok(socket) if connections.len() < door.limits.max_connections => socket,
            Ok(_one_too_many) => continue,
            Err(error) => {
                tracing::debug!(%error, "cannot accept an HTTP connection");
                sleep(OUT_OF_DESCRIPTORS).await;
                continue;
            }
        };
        let (door, stop) = (door.clone(), stop.clone());
        connections.spawn(async move {
            if let Err(error) = open(socket, door, stop).await {
                tracing::debug!(%error, "HTTP connection cannot be served");
            }
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn open(socket: Socket, door: Door, stop: CancellationToken) -> io::Result<()> {
    let mut io = Carried::Loose(socket);
    io.tie()?;
    let Some(tls) = door.tls.clone() else {
        connection(io, None, door, stop).await;
        return Ok(());
    };
    let handshake = handshake::accept(tls.http(), io);
    let io = tokio::select! {
        io = timeout(door.limits.header_timeout, handshake) => io?,
        // Nothing was asked yet.
        () = stop.cancelled() => return Ok(()),
    };
    if let Some(io) = io? {
        let caller = handshake::caller(&io);
        connection(io, caller, door, stop).await;
    }
    Ok(())
}

async fn connection<I>(io: I, caller: Option<Caller>, door: Door, stop: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let Door {
        router,
        limits,
        token,
        ..
    } = door;
    let service = service_fn(move |mut request: Request<Incoming>| {
        let mut router = router.clone();
        let is_let_in = is_let_in(&request, token.as_ref());
        if let Some(caller) = &caller {
            request.extensions_mut().insert(caller.clone());
        }
        async move {
            if !is_let_in {
                return Ok(unauthorized());
            }
            let answer = timeout(limits.request_timeout, router.call(request)).await;
            Ok::<_, Infallible>(match answer {
                Ok(Ok(answer)) => answer,
                Err(_) => too_slow(),
            })
        }
    });
    let pulse = Arc::<Pulse>::default();
    let mut stall = Stall::new(Arc::clone(&pulse), limits.write_timeout);
    let io = Watched { io, pulse };
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(io), service)
    );
    let mut stop = pin!(stop.cancelled_owned());
    let mut stopping = false;
    let served = poll_fn(|cx| {
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        match connection.as_mut().poll(cx) {
            Poll::Pending if stall.poll(cx).is_ready() => Poll::Ready(Ok(())),
            result => result,
        }
    })
    .await;
    if let Err(error) = served {
        tracing::debug!(%error, "HTTP connection failed");
    }
}

/// Health is for everybody.
fn is_let_in(request: &Request<Incoming>, token: Option<&Secret>) -> bool {
    let given = request.headers().get(AUTHORIZATION);
    token.is_none()
        || ["/healthcheck", "/livez", "/readyz"].contains(&request.uri().path())
        || given.is_some_and(|given| is_bearer(given.as_bytes(), token))
}

fn unauthorized() -> Response<Body> {
    let mut answer = Response::new(Body::from("the token is missing or wrong\n"));
    *answer.status_mut() = StatusCode::UNAUTHORIZED;
    let bearer = HeaderValue::from_static("Bearer");
    answer.headers_mut().insert(WWW_AUTHENTICATE, bearer);
    answer
}

fn too_slow() -> Response<Body> {
    let mut answer = Response::new(Body::from("the request took too long\n"));
    *answer.status_mut() = StatusCode::REQUEST_TIMEOUT;
    answer
}
