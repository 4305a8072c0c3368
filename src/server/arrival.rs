//! A connection between being accepted and being served: on its way from one thread to another.

use std::{io, net::SocketAddr};

use tokio_rustls::server::TlsStream;

use super::{carry::Carried, listen::Socket, preface::Rewound, stats::Open};
use crate::api::privileges::Caller;

/// A connection on its way to the worker, counted as open since it was accepted.
pub(super) type Handed = (Arrival, Open);

/// A connection, not yet tied to a runtime.
pub(super) enum Arrival {
    /// Nothing was read from it.
    Plain(Socket),
    /// Its TLS handshake is made.
    Secured(Box<Secured>),
}

/// Clear text on one side, TLS on the other.
pub(super) type Stream<I> = TlsStream<Rewound<I>>;

/// A connection whose client is known, on its way to a worker.
pub(super) struct Secured {
    pub(super) stream: Stream<Carried>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) caller: Option<Caller>,
}

impl Secured {
    /// Ties the connection to the present runtime.
    pub(super) fn arrive(
        mut self: Box<Self>,
    ) -> io::Result<(Stream<Carried>, Option<SocketAddr>, Option<Caller>)> {
        self.stream.get_mut().0.inner_mut().tie()?;
        Ok((self.stream, self.peer, self.caller))
    }
}
