//! TLS handshakes of the gRPC listener, on a thread of their own.
//!
//! A handshake is up to a millisecond of arithmetic, two hundred times a decision. Made on a worker,
//! a crowd of new clients would hold up every call of the old ones.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    runtime,
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::{
    accept::Handover,
    arrival::{Arrival, Secured, Stream},
    carry::Carried,
    listen::Socket,
    preface::Rewound,
    stop::Life,
    tls::{self, Tls},
};
use crate::{api::privileges::Caller, telemetry::logging::Throttle};

/// Accepted connections that wait for the thread to take them.
const WAITING: usize = 256;

/// What is still shaken hands with when the process stops gets so long.
const LATE: Duration = Duration::from_millis(500);

/// What the thread works with.
pub(super) struct Handshakes {
    pub(super) tls: Arc<Tls>,
    /// Where connections go afterwards.
    pub(super) handover: Handover,
    /// How long one may take.
    pub(super) timeout: Duration,
    /// Most at a time; one more is closed at once.
    pub(super) most: usize,
    pub(super) failed: Throttle,
}

/// Starts the thread. It ends when the acceptor is gone and the last handshakes have been made.
pub(super) fn spawn(handshakes: Handshakes, life: Life) -> io::Result<mpsc::Sender<Socket>> {
    let (send, sockets) = mpsc::channel(WAITING);
    thread::Builder::new()
        .name("handshakes".to_owned())
        .spawn(move || {
            let _life = life;
            let runtime = runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build();
            match runtime {
                Ok(runtime) => runtime.block_on(run(Arc::new(handshakes), sockets)),
                Err(error) => tracing::error!(%error, "the thread of handshakes cannot start"),
            }
        })?;
    Ok(send)
}

async fn run(handshakes: Arc<Handshakes>, mut sockets: mpsc::Receiver<Socket>) {
    let running = TaskTracker::new();
    while let Some(socket) = sockets.recv().await {
        if running.len() < handshakes.most {
            running.spawn(Arc::clone(&handshakes).make(socket));
        } else {
            let stats = &handshakes.handover.stats;
            stats.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
    running.close();
    let _ = timeout(LATE, running.wait()).await;
}

impl Handshakes {
    async fn make(self: Arc<Self>, socket: Socket) {
        let io = Carried::Loose(socket);
        let peer = io.peer();
        let made = timeout(self.timeout, secure(&self.tls, io)).await;
        let why = match made {
            Ok(Ok(Some(mut stream))) => match stream.get_mut().0.inner_mut().loosen() {
                Ok(()) => {
                    let caller = caller(&stream);
                    let secured = Box::new(Secured {
                        stream,
                        peer,
                        caller,
                    });
                    return self.handover.hand_over(Arrival::Secured(secured)).await;
                }
                Err(error) => error.to_string(),
            },
            // A probe of the port.
            Ok(Ok(None)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it took too long".to_owned(),
        };
        let stats = &self.handover.stats;
        stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = self.failed.pass(self.handover.clock.now().steady) {
            let from = peer.map_or_else(|| "a local socket".to_owned(), |peer| peer.to_string());
            tracing::warn!(%from, more, "TLS handshake on the gRPC port failed: {why}");
        }
    }
}

/// None: closed without a word.
async fn secure(tls: &Tls, mut io: Carried) -> io::Result<Option<Stream<Carried>>> {
    io.tie()?;
    accept(tls.grpc(), io).await
}

/// Who is at the other side; none when it showed no certificate.
pub(super) fn caller<I>(stream: &Stream<I>) -> Option<Caller> {
    let chain = stream.get_ref().1.peer_certificates()?;
    Some(Caller(tls::names(chain.first()?).into()))
}

/// Shakes hands with a client that speaks TLS, and tells one that does not that it should. None: it
/// closed without a word.
pub(super) async fn accept<I>(tls: TlsAcceptor, mut io: I) -> io::Result<Option<Stream<I>>>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let mut first = [0];
    if io.read(&mut first).await? == 0 {
        return Ok(None);
    }
    if first[0] != tls::FIRST_BYTE {
        tls::turn_away(io, first[0]).await;
        let plain = "it spoke plain text";
        return Err(io::Error::new(io::ErrorKind::InvalidData, plain));
    }
    let io = Rewound::new(io, &[tls::FIRST_BYTE]);
    tls.accept(io).await.map(Some)
}
