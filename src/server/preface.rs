//! The first bytes of a connection: HTTP/2, or somebody at the wrong door.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// What every HTTP/2 client says first (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Who is there?
#[derive(Debug)]
pub(super) enum Opening<I> {
    /// The whole preface, to be read again by the HTTP/2 connection.
    Http2(Rewound<I>),
    /// A request line of HTTP/1.
    Http1(I),
    /// A TLS hello, though this port speaks plain text.
    Tls,
    /// Bytes of no protocol we know.
    Unknown,
    /// Closed before it said anything: a probe of the port.
    Closed,
}

/// Reads until it is clear who is there. The caller bounds the time.
pub(super) async fn read<I>(mut io: I) -> io::Result<Opening<I>>
where
    I: AsyncRead + Unpin,
{
    let mut bytes = [0; PREFACE.len()];
    let mut read = 0;
    while read < bytes.len() {
        let n = io.read(&mut bytes[read..]).await?;
        if n == 0 {
            return Ok(Opening::Closed);
        }
        read += n;
        if bytes[..read] != PREFACE[..read] {
            return Ok(match bytes[0] {
                0x16 => Opening::Tls,
                b'A'..=b'Z' => Opening::Http1(io),
                _ => Opening::Unknown,
            });
        }
    }
    Ok(Opening::Http2(Rewound::new(io, PREFACE)))
}

/// A stream whose first bytes were read and are given once more.
#[derive(Debug)]
pub(super) struct Rewound<I> {
    io: I,
    /// What is still to be given.
    again: &'static [u8],
}

impl<I> Rewound<I> {
    /// `again` is what was read from `io`.
    pub(super) fn new(io: I, again: &'static [u8]) -> Self {
        Self { io, again }
    }

    /// The stream below.
    pub(super) fn inner_mut(&mut self) -> &mut I {
        &mut self.io
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Rewound<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.again.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let (now, later) = self.again.split_at(self.again.len().min(buf.remaining()));
        buf.put_slice(now);
        self.again = later;
        Poll::Ready(Ok(()))
    }
}

/// Not vectored, whatever is below: h2 sends every answer of 256 bytes or more in a write of its own
/// to a stream that is, and gathers answers below 1024 bytes in one write for a stream that is not.
/// Seen with all header families on every answer: 43 % of a worker's CPU in `writev`, against 5 %
/// with answers that are shorter.
impl<I: AsyncWrite + Unpin> AsyncWrite for Rewound<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn opening(bytes: &[u8]) -> Opening<tokio::io::DuplexStream> {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(bytes).await.unwrap();
        drop(client);
        read(server).await.unwrap()
    }

    #[tokio::test]
    async fn each_guest_is_recognised() {
        assert!(matches!(opening(PREFACE).await, Opening::Http2(_)));
        assert!(matches!(
            opening(b"GET / HTTP/1.1\r\n").await,
            Opening::Http1(_)
        ));
        // Shares its first byte with the preface.
        assert!(matches!(opening(b"POST /json").await, Opening::Http1(_)));
        assert!(matches!(opening(&[0x16, 3, 1, 2]).await, Opening::Tls));
        assert!(matches!(opening(&[0, 255, 7]).await, Opening::Unknown));
        assert!(matches!(opening(b"").await, Opening::Closed));
        assert!(matches!(opening(b"PRI * HT").await, Opening::Closed));
    }

    #[tokio::test]
    async fn the_preface_is_read_again_and_what_follows_too() {
        let mut bytes = PREFACE.to_vec();
        bytes.extend_from_slice(b"frames");
        let Opening::Http2(mut io) = opening(&bytes).await else {
            panic!("HTTP/2 expected")
        };
        let mut again = Vec::new();
        io.read_to_end(&mut again).await.unwrap();
        assert_eq!(again, bytes);
    }
}
