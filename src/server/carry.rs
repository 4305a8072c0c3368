//! A socket that moves between runtimes: its handshake is made on one thread, its calls are served
//! on another.

use std::{
    io, mem,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};

use super::listen::Socket;

/// A socket; of use only while it is tied to a runtime.
#[derive(Debug)]
pub(super) enum Carried {
    /// TCP, tied to a runtime.
    Tcp(TcpStream),
    /// A socket file, tied to a runtime.
    Unix(UnixStream),
    /// On its way.
    Loose(Socket),
    /// What is left when tying or loosening failed.
    Lost,
}

impl Carried {
    /// Ties the socket to the present runtime.
    pub(super) fn tie(&mut self) -> io::Result<()> {
        *self = match mem::replace(self, Self::Lost) {
            Self::Loose(Socket::Tcp(tcp)) => Self::Tcp(TcpStream::from_std(tcp)?),
            Self::Loose(Socket::Unix(unix)) => Self::Unix(UnixStream::from_std(unix)?),
            tied => tied,
        };
        Ok(())
    }

    /// Takes it from its runtime.
    pub(super) fn loosen(&mut self) -> io::Result<()> {
        *self = match mem::replace(self, Self::Lost) {
            Self::Tcp(tcp) => Self::Loose(Socket::Tcp(tcp.into_std()?)),
            Self::Unix(unix) => Self::Loose(Socket::Unix(unix.into_std()?)),
            loose => loose,
        };
        Ok(())
    }

    /// The other side; none for a socket file.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().ok(),
            Self::Loose(Socket::Tcp(tcp)) => tcp.peer_addr().ok(),
            _ => None,
        }
    }
}

fn loose() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "bug: the socket is on its way")
}

impl AsyncRead for Carried {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Unix(unix) => Pin::new(unix).poll_read(cx, buf),
            _ => Poll::Ready(Err(loose())),
        }
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Unix(unix) => Pin::new(unix).poll_write(cx, buf),
            _ => Poll::Ready(Err(loose())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Unix(unix) => Pin::new(unix).poll_flush(cx),
            _ => Poll::Ready(Err(loose())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
            _ => Poll::Ready(Err(loose())),
        }
    }
}
