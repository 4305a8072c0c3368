//! One gRPC connection: its HTTP/2, its age, its end.

use std::{
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::{sleep, timeout},
};
use tonic::body::Body;

use super::{
    batch::Batch,
    guard::{Gate, Guard},
    preface::{self, Opening, Rewound},
    pulse::{Idle, Pulse, Stall, Watched},
    stats::Stats,
    stop::Stopping,
    turn::{self, Turn},
};
use crate::{
    api::privileges::Caller,
    model::time::Clock,
    store::connections::{ClosedBy, Connection, Connections},
    telemetry::logging::Throttle,
};

/// Bounds and tunings of the gRPC connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Most open connections, all workers together. Default 10,000; one more is closed at once.
    pub max_connections: usize,
    /// Most calls in flight on one connection. Default 1024, which is what an Envoy sends before
    /// its own circuit breaker opens; clients that want more open another connection.
    pub max_streams: u32,
    /// Most bytes of headers in a call, counted as HTTP/2 does. Default 16 KiB.
    pub max_header_list: u32,
    /// How long a guest may take until it has said what it speaks, and before that for its TLS
    /// handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// Most TLS handshakes at a time, of all workers together. Default 1024; one more is closed at
    /// once.
    pub max_handshakes: usize,
    /// Age, give or take a tenth, at which a connection is asked to leave, so that load spreads
    /// over replicas that came later. None: never.
    pub max_age: Option<Duration>,
    /// What a connection that was asked to leave gets to finish its calls. Envoy loses calls when
    /// this is as short as a call; the default is an hour.
    pub max_age_grace: Duration,
    /// Time without a call after which a connection is asked to leave; it may take twice as long.
    /// Default none: the next call would wait for a new one.
    pub max_idle: Option<Duration>,
    /// How long a client may leave answers unread. Default 30 s.
    pub write_timeout: Duration,
    /// Most calls that wait, of all workers together and in equal parts, for a store or a permit;
    /// one more is `UNAVAILABLE`. A connection gets none where it has as many waiting as are left
    /// for all. Default 16,384.
    pub max_calls: usize,
    /// Silence after which a PING asks whether the other side is still there. None: never.
    pub keepalive_interval: Option<Duration>,
    /// How long the answer to that PING may take.
    pub keepalive_timeout: Duration,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_streams: 1024,
            max_header_list: 16 * 1024,
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 1024,
            max_age: Some(Duration::from_hours(1)),
            max_age_grace: Duration::from_hours(1),
            max_idle: None,
            write_timeout: Duration::from_secs(30),
            max_calls: 16_384,
            keepalive_interval: Some(Duration::from_mins(1)),
            keepalive_timeout: Duration::from_secs(20),
        }
    }
}

/// What all connections of a worker share.
pub(super) struct Shared<S> {
    pub(super) service: S,
    pub(super) transport: Transport,
    pub(super) stopping: Stopping,
    pub(super) stats: Arc<Stats>,
    /// Who is connected.
    pub(super) connections: Option<Arc<Connections>>,
    pub(super) clock: Clock,
    pub(super) wrong_door: Arc<Throttle>,
    /// Where HTTP/1 is welcome, for the hint to those who knock here with it.
    pub(super) http: Arc<str>,
    /// What is served here came out of TLS.
    pub(super) speaks_tls: bool,
    /// How many calls may wait.
    pub(super) gate: Arc<Gate>,
}

impl<S> Shared<S> {
    fn speaks(&self) -> &'static str {
        if self.speaks_tls {
            "gRPC (HTTP/2 over TLS)"
        } else {
            "gRPC (HTTP/2 without TLS)"
        }
    }
}

/// Serves one connection until its end. `caller` is who showed a certificate.
pub(super) async fn serve<I, S>(
    io: I,
    peer: Option<SocketAddr>,
    caller: Option<Caller>,
    shared: &Shared<S>,
) where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + 'static,
    S::Future: Unpin,
{
    let too_late = async {
        shared.stopping.drain.cancelled().await;
        // Whoever came at the last moment may have sent its first calls already.
        sleep(LATE_OPENING).await;
    };
    let opening = tokio::select! {
        biased;
        opening = timeout(shared.transport.handshake_timeout, preface::read(io)) => opening,
        () = too_late => return,
        () = shared.stopping.cut.cancelled() => return,
    };
    match opening {
        Ok(Ok(Opening::Http2(io))) => http2(io, peer, caller, shared).await,
        Ok(Ok(Opening::Closed)) => {}
        Ok(Ok(Opening::Http1(io))) => {
            stranger(shared, peer, "HTTP/1");
            send_to_http(io, shared).await;
        }
        Ok(Ok(Opening::Tls)) => stranger(shared, peer, "TLS"),
        Ok(Ok(Opening::Unknown)) => stranger(shared, peer, "something unknown"),
        Ok(Err(error)) => tracing::debug!(?peer, %error, "gRPC connection failed to open"),
        Err(_) => stranger(shared, peer, "nothing in time"),
    }
}

/// How long a connection may take to open when the process stops already.
const LATE_OPENING: Duration = Duration::from_millis(500);

fn stranger<S>(shared: &Shared<S>, peer: Option<SocketAddr>, spoke: &'static str) {
    shared.stats.strangers.fetch_add(1, Ordering::Relaxed);
    if let Some(more) = shared.wrong_door.pass(shared.clock.now().steady) {
        let from = peer.map_or_else(|| "a local socket".to_owned(), |peer| peer.to_string());
        let (http, speaks) = (&shared.http, shared.speaks());
        tracing::warn!(
            %from, spoke, more,
            "this port speaks {speaks} and was sent {spoke}; HTTP/1 is at {http}"
        );
    }
}

/// Tells an HTTP/1 client where its door is. It may be gone; then nobody needs to know.
async fn send_to_http<I: AsyncWrite + Unpin, S>(mut io: I, shared: &Shared<S>) {
    let (http, speaks) = (&shared.http, shared.speaks());
    let body = format!("This port speaks {speaks}. HTTP/1 is at {http}\n");
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = io.write_all(answer.as_bytes()).await;
    let _ = io.shutdown().await;
}

async fn http2<I, S>(
    io: Rewound<I>,
    peer: Option<SocketAddr>,
    caller: Option<Caller>,
    shared: &Shared<S>,
) where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + 'static,
    S::Future: Unpin,
{
    let batch = Batch::default();
    let pulse = Arc::<Pulse>::default();
    let mut link = shared.connections.as_ref().map(|all| Link {
        connection: Arc::new(all.open(peer.map(|peer| peer.ip()), shared.clock.now())),
        clock: &shared.clock,
        ended_by: ClosedBy::Us,
    });
    let guard = Guard {
        service: shared.service.clone(),
        gate: Arc::clone(&shared.gate),
        pulse: Arc::clone(&pulse),
        caller,
        link: link.as_ref().map(|link| Arc::clone(&link.connection)),
    };
    let io = Watched {
        io,
        pulse: Arc::clone(&pulse),
    };
    let mut connection =
        pin!(builder(&shared.transport, batch.clone()).serve_connection(TokioIo::new(io), guard));
    let mut stall = Stall::new(Arc::clone(&pulse), shared.transport.write_timeout);
    let mut idle = shared
        .transport
        .max_idle
        .map(|max| Idle::new(Arc::clone(&pulse), max));
    let mut drain = pin!(shared.stopping.drain.cancelled());
    let mut cut = pin!(shared.stopping.cut.cancelled());
    let mut age = pin!(shared.transport.max_age.map(|age| sleep(jittered(age))));
    let mut phase = Phase::Young;

    let closed_hard = poll_fn(|cx| {
        if phase != Phase::Draining && drain.as_mut().poll(cx).is_ready() {
            phase = Phase::Draining;
            // The process has its own deadline.
            age.set(None);
            connection.as_mut().graceful_shutdown();
        }
        if cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(&shared.stats.cut));
        }
        if over(age.as_mut(), cx) {
            if phase == Phase::Leaving {
                return Poll::Ready(Some(&shared.stats.cut));
            }
            phase = Phase::Leaving;
            shared.stats.aged.fetch_add(1, Ordering::Relaxed);
            age.set(Some(sleep(shared.transport.max_age_grace)));
            // The new timer has to be asked once to wake us.
            let _ = over(age.as_mut(), cx);
            connection.as_mut().graceful_shutdown();
        }
        if phase == Phase::Young && idle.as_mut().is_some_and(|idle| idle.poll(cx).is_ready()) {
            phase = Phase::Leaving;
            shared.stats.idle.fetch_add(1, Ordering::Relaxed);
            age.set(Some(sleep(shared.transport.max_age_grace)));
            let _ = over(age.as_mut(), cx);
            connection.as_mut().graceful_shutdown();
        }
        match turn::take(connection.as_mut(), &batch, &pulse, cx) {
            Turn::Ended(result) => {
                if let Err(error) = result {
                    tracing::debug!(%error, "gRPC connection failed");
                }
                return Poll::Ready(None::<&AtomicU64>);
            }
            Turn::Over => return Poll::Pending,
            Turn::Done => {}
        }
        if stall.poll(cx).is_ready() {
            return Poll::Ready(Some(&shared.stats.stalled));
        }
        Poll::Pending
    })
    .await;
    if let Some(counter) = closed_hard {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    // Whoever was asked to leave and did has not died. One that stalled may have.
    if let Some(link) = &mut link
        && phase == Phase::Young
        && !shared.stopping.cut.is_cancelled()
    {
        link.ended_by = ClosedBy::Peer;
    }
}

/// Says that a connection has ended, whatever ended it.
struct Link<'a> {
    connection: Arc<Connection>,
    clock: &'a Clock,
    ended_by: ClosedBy,
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        self.connection.close(self.ended_by, self.clock.now());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Young,
    /// Asked to leave because of its age; the timer now holds the grace.
    Leaving,
    /// Asked to leave because the process stops.
    Draining,
}

fn over<F: Future<Output = ()>>(timer: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> bool {
    timer
        .as_pin_mut()
        .is_some_and(|timer| timer.poll(cx).is_ready())
}

fn builder(transport: &Transport, batch: Batch) -> http2::Builder<Batch> {
    let mut builder = http2::Builder::new(batch);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(transport.max_streams)
        .max_header_list_size(transport.max_header_list)
        .keep_alive_interval(transport.keepalive_interval)
        .keep_alive_timeout(transport.keepalive_timeout)
        // Envoy resets every call that it gave up. After a stall of ours, as many resets as it had
        // calls in flight arrive at once, and that is not an attack.
        .max_pending_accept_reset_streams(usize::try_from(transport.max_streams).ok())
        // gRPC has no use for it, and it costs a tenth of a microsecond.
        .auto_date_header(false);
    builder
}

/// Up to a tenth more or less, so that connections opened together do not leave together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(rand::random_range(0.9..=1.1))
}
