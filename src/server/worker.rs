//! The threads that serve gRPC: one single-threaded runtime each.

use std::{convert::Infallible, io, rc::Rc, thread};

use http::{Request, Response};
use hyper::{body::Incoming, service::Service};
use tokio::{runtime, sync::mpsc, task};
use tokio_util::task::TaskTracker;
use tonic::body::Body;

use super::{
    arrival::{Arrival, Handed},
    connection::{self, Shared},
    listen::Socket,
    stop::Life,
};

/// Accepted connections that wait for a worker to take them. A worker that is behind by so many
/// makes the acceptor wait.
const HANDOFF: usize = 256;

/// Starts a worker. It ends when its connections have ended and the acceptor is gone.
pub(super) fn spawn<S>(
    index: usize,
    shared: Shared<S>,
    life: Life,
) -> io::Result<mpsc::Sender<Handed>>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Unpin,
{
    let (handoff, handed) = mpsc::channel(HANDOFF);
    thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            let _life = life;
            let runtime = runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build_local(runtime::LocalOptions::default());
            match runtime {
                Ok(runtime) => {
                    shared.stats.works(index, runtime.handle().metrics());
                    runtime.block_on(work(shared, handed));
                }
                Err(error) => tracing::error!(index, %error, "a worker cannot start"),
            }
        })?;
    Ok(handoff)
}

async fn work<S>(shared: Shared<S>, mut handed: mpsc::Receiver<Handed>)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Unpin,
{
    let shared = Rc::new(shared);
    let connections = TaskTracker::new();
    // Ends when the acceptor is gone, which is the first step of a drain.
    while let Some((arrival, open)) = handed.recv().await {
        let shared = Rc::clone(&shared);
        task::spawn_local(connections.track_future(async move {
            serve(arrival, &shared).await;
            drop(open);
        }));
    }
    connections.close();
    connections.wait().await;
}

async fn serve<S>(arrival: Arrival, shared: &Shared<S>)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + 'static,
    S::Future: Unpin,
{
    let failed = match arrival {
        Arrival::Plain(Socket::Tcp(tcp)) => match tokio::net::TcpStream::from_std(tcp) {
            Ok(tcp) => {
                let peer = tcp.peer_addr().ok();
                return connection::serve(tcp, peer, None, shared).await;
            }
            Err(error) => error,
        },
        Arrival::Plain(Socket::Unix(unix)) => match tokio::net::UnixStream::from_std(unix) {
            Ok(unix) => return connection::serve(unix, None, None, shared).await,
            Err(error) => error,
        },
        Arrival::Secured(secured) => match secured.arrive() {
            Ok((stream, peer, caller)) => {
                return connection::serve(stream, peer, caller, shared).await;
            }
            Err(error) => error,
        },
    };
    tracing::debug!(error = %failed, "accepted connection cannot be served");
}
