//! Clients without TLS at a door that has it: each is told in its own language.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::{sleep, timeout},
};

/// First byte of every TLS connection: a handshake record (RFC 8446, 5.1).
pub(in crate::server) const FIRST_BYTE: u8 = 0x16;

/// `INADEQUATE_SECURITY` (RFC 9113, 7).
const INADEQUATE_SECURITY: u32 = 0xc;

const WORDS: &str = "this port wants TLS";

/// Says that this port wants TLS, as an answer of HTTP/1 or as the GOAWAY of HTTP/2, and closes.
/// `first` is the byte that was read already. The client may be gone; then nobody needs to know.
pub(in crate::server) async fn turn_away<I>(mut io: I, first: u8)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    // The preface of HTTP/2 begins like a request line of HTTP/1: `PRI`, where others have `PO`,
    // `PU` or `PA`.
    let second = match first {
        b'P' => timeout(LINGER, io.read_u8()).await,
        _ => Ok(Ok(0)),
    };
    let words = match (first, second) {
        (b'P', Ok(Ok(b'R'))) => goaway(),
        (b'A'..=b'Z', _) => bad_request(),
        _ => Vec::new(),
    };
    let end = async {
        sleep(PAUSE).await;
        let _ = io.write_all(&words).await;
        let _ = io.shutdown().await;
        // To close with bytes unread would be a reset, which overtakes the answer.
        let mut rest = io.take(MOST_UNREAD);
        let mut sink = [0; 1024];
        while rest.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    };
    let _ = timeout(LINGER, end).await;
}

/// Some gRPC clients come back at once after a GOAWAY, for as long as their calls may take: this is
/// how often they can.
const PAUSE: Duration = Duration::from_millis(200);

/// How long, and for how many bytes, to wait for the client's end of the connection.
const LINGER: Duration = Duration::from_secs(1);
const MOST_UNREAD: u64 = 64 * 1024;

fn bad_request() -> Vec<u8> {
    let length = WORDS.len() + 1;
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{WORDS}\n"
    )
    .into_bytes()
}

/// Empty SETTINGS, which have to come first, and a GOAWAY; gRPC clients show its text.
fn goaway() -> Vec<u8> {
    let length = u8::try_from(WORDS.len() + 8).unwrap_or(u8::MAX);
    let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    frames.extend_from_slice(&[0, 0, length, 7, 0, 0, 0, 0, 0]);
    frames.extend_from_slice(&0_u32.to_be_bytes());
    frames.extend_from_slice(&INADEQUATE_SECURITY.to_be_bytes());
    frames.extend_from_slice(WORDS.as_bytes());
    frames
}
