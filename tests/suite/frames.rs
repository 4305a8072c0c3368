//! HTTP/2 frame by frame: what no client library would send. Whatever it is, the connection ends or
//! goes on, memory has a bound, and the calls of others are answered.

use std::time::Duration;

use porteiro::server::{Options, Transport, noop::Noop};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::serving::{TestServer, ask, options, within};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

/// A connection without a library.
pub(crate) struct Raw(TcpStream);

/// A frame as it came.
#[derive(Debug)]
pub(crate) struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

/// The bytes of a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Literal field, not indexed, without Huffman coding (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text.as_bytes());
    }
    block
}

/// The head of a `ShouldRateLimit` call and more fields.
fn head(more: &[(&str, &str)]) -> Vec<u8> {
    // `:method POST` and `:scheme http` of the static table.
    let mut block = vec![0x83, 0x86];
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let fixed = [
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in fixed.iter().chain(more) {
        block.extend(field(name, value));
    }
    block
}

/// The message of a call with its length before it.
fn body() -> Vec<u8> {
    body_for("d")
}

fn body_for(domain: &str) -> Vec<u8> {
    let message = ask(domain, "k", "v").encode_to_vec();
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend(message);
    bytes
}

/// A whole call.
fn call(stream: u32) -> Vec<u8> {
    let mut bytes = frame(HEADERS, END_HEADERS, stream, &head(&[]));
    bytes.extend(frame(DATA, END_STREAM, stream, &body()));
    bytes
}

fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (name, value) in values {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

/// Number `index` of a client's streams.
fn stream(index: u32) -> u32 {
    2 * index + 1
}

impl Raw {
    pub(crate) async fn open(server: &TestServer) -> Self {
        Self::open_with(server, &[]).await
    }

    async fn open_with(server: &TestServer, values: &[(u16, u32)]) -> Self {
        let mut raw = Self(TcpStream::connect(server.grpc).await.unwrap());
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        begin.extend(settings(values));
        raw.0.write_all(&begin).await.unwrap();
        raw
    }

    /// Sends; false when the other side has closed.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        within(self.0.write_all(bytes)).await.is_ok()
    }

    /// Sends the head of a call with more fields.
    pub(crate) async fn begin(&mut self, stream: u32, more: &[(&str, &str)]) {
        let head = frame(HEADERS, END_HEADERS, stream, &head(more));
        assert!(self.send(&head).await);
    }

    /// Sends the message of a call.
    pub(crate) async fn finish(&mut self, stream: u32) {
        assert!(self.send(&frame(DATA, END_STREAM, stream, &body())).await);
    }

    /// The first calls of this connection, so many, for a domain.
    pub(crate) async fn calls(&mut self, count: u32, domain: &str) {
        let mut bytes = Vec::new();
        for stream in (0..count).map(stream) {
            bytes.extend(frame(HEADERS, END_HEADERS, stream, &head(&[])));
            bytes.extend(frame(DATA, END_STREAM, stream, &body_for(domain)));
        }
        assert!(self.send(&bytes).await);
    }

    /// So many whole calls, each taken back at once.
    pub(crate) async fn call_and_give_up(&mut self, count: u32) {
        let mut bytes = Vec::new();
        for stream in (0..count).map(stream) {
            bytes.extend(call(stream));
            bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        assert!(self.send(&bytes).await);
    }

    /// The next frame; none at the end.
    async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        within(self.0.read_exact(&mut head)).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        within(self.0.read_exact(&mut payload)).await.ok()?;
        if head[3] == PING && head[4] != ACK {
            // Part of the way to a graceful end; the other side may be gone.
            let _ = self.0.write_all(&frame(PING, ACK, 0, &payload)).await;
        }
        Some(Frame {
            kind: head[3],
            flags: head[4],
            payload,
        })
    }

    /// Reads until the connection ends; the error code of the last GOAWAY.
    pub(crate) async fn end(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next().await {
            if frame.kind == GOAWAY {
                code = Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()));
            }
        }
        code
    }

    /// True when a PING is answered, false when the connection ended.
    pub(crate) async fn pong(&mut self) -> bool {
        if !self.send(&frame(PING, 0, 0, b"arethere")).await {
            return false;
        }
        while let Some(frame) = self.next().await {
            if frame.kind == PING && frame.flags == ACK && frame.payload == b"arethere" {
                return true;
            }
        }
        false
    }
}

/// Both workers answer.
async fn others_are_answered(server: &TestServer) {
    for _ in 0..2 {
        let mut client = server.client().await;
        let answer = within(client.should_rate_limit(ask("d", "k", "v"))).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
}

fn with(transport: Transport) -> Options {
    Options {
        transport,
        ..options()
    }
}

#[tokio::test]
async fn rapid_reset_is_survived() {
    let server = TestServer::start(Noop, options()).await;
    let mut raw = Raw::open(&server).await;
    let mut is_open = true;
    for round in 0..200 {
        let mut bytes = Vec::new();
        for index in 0..250 {
            let stream = stream(round * 250 + index);
            bytes.extend(frame(HEADERS, END_HEADERS, stream, &head(&[])));
            bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        is_open = raw.send(&bytes).await;
        if !is_open {
            break;
        }
    }
    if is_open {
        let _ = raw.pong().await;
    }
    others_are_answered(&server).await;
}

#[tokio::test]
async fn a_flood_of_continuations_ends_the_connection() {
    let server = TestServer::start(Noop, options()).await;
    let mut raw = Raw::open(&server).await;
    assert!(raw.send(&frame(HEADERS, 0, 1, &head(&[]))).await);
    let more = frame(
        CONTINUATION,
        0,
        1,
        &field("x-more", &"v".repeat(100)).repeat(64),
    );
    let mut sent = 0;
    while raw.send(&more).await {
        sent += more.len();
        assert!(sent < 64 << 20, "it listens for ever");
    }
    others_are_answered(&server).await;
    // Empty ones bring no bytes that could be counted.
    let mut raw = Raw::open(&server).await;
    assert!(raw.send(&frame(HEADERS, 0, 1, &head(&[]))).await);
    let more = frame(CONTINUATION, 0, 1, &[]).repeat(1000);
    let mut sent = 0;
    while raw.send(&more).await {
        sent += more.len();
        assert!(sent < 64 << 20, "it listens for ever");
    }
    others_are_answered(&server).await;
}

#[tokio::test]
async fn a_bomb_of_headers_is_not_unpacked() {
    let server = TestServer::start(Noop, options()).await;
    let mut raw = Raw::open(&server).await;
    // An entry of the dynamic table (RFC 7541, 6.2.1), and then nothing but references to it: four
    // thousand times four thousand bytes in one frame.
    let mut block = head(&[]);
    block.extend_from_slice(&[0x40, 1, b'x', 0x7f]);
    // 4000 - 127 as a varint.
    block.extend_from_slice(&[0xa1, 0x1e]);
    block.extend(vec![b'v'; 4000]);
    block.extend(vec![0xbe; 4000]);
    assert!(
        raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block))
            .await
    );
    // The call is refused, or the connection ends.
    let _ = raw.pong().await;
    others_are_answered(&server).await;
}

#[tokio::test]
async fn who_floods_and_does_not_read_is_cut() {
    let short = with(Transport {
        write_timeout: Duration::from_millis(50),
        ..Transport::default()
    });
    let server = TestServer::start(Noop, short).await;
    for (count, what) in [
        (1, frame(PING, 0, 0, b"12345678")),
        (2, settings(&[(4, 65_535)])),
    ] {
        let mut raw = Raw::open(&server).await;
        let many = what.repeat(1000);
        while raw.send(&many).await {}
        others_are_answered(&server).await;
        assert_eq!(
            server.counter("porteiro_connections_stalled_total").await,
            count
        );
    }
}

#[tokio::test]
async fn a_reader_without_a_window_is_cut_and_one_that_reads_is_not() {
    let short = with(Transport {
        write_timeout: Duration::from_millis(50),
        ..Transport::default()
    });
    let server = TestServer::start(Noop, short).await;
    // Reads, and then asks nothing for longer than the timeout.
    let mut good = Raw::open(&server).await;
    assert!(good.send(&call(1)).await);
    // SETTINGS_INITIAL_WINDOW_SIZE.
    let mut raw = Raw::open_with(&server, &[(4, 0)]).await;
    for index in 0..100 {
        assert!(raw.send(&call(stream(index))).await);
    }
    // The heads come, the bodies cannot.
    raw.end().await;
    assert_eq!(
        server.counter("porteiro_connections_stalled_total").await,
        1
    );
    assert!(good.pong().await);
}

#[tokio::test]
async fn one_stream_too_many_is_refused_and_the_others_are_answered() {
    let two = with(Transport {
        max_streams: 2,
        ..Transport::default()
    });
    let server = TestServer::start(Noop, two).await;
    let mut raw = Raw::open(&server).await;
    for index in 0..3 {
        assert!(
            raw.send(&frame(HEADERS, END_HEADERS, stream(index), &head(&[])))
                .await
        );
    }
    let mut refused = None;
    while refused.is_none() {
        let frame = raw.next().await.unwrap();
        if frame.kind == RST_STREAM {
            refused = Some(u32::from_be_bytes(frame.payload.try_into().unwrap()));
        }
    }
    assert_eq!(refused, Some(7), "REFUSED_STREAM");
    assert!(raw.send(&frame(DATA, END_STREAM, 1, &body())).await);
    let mut data = Vec::new();
    while data.is_empty() {
        let frame = raw.next().await.unwrap();
        if frame.kind == DATA {
            data = frame.payload;
        }
    }
    assert!(raw.pong().await);
}

#[tokio::test]
async fn floods_that_ask_nothing_are_survived() {
    let server = TestServer::start(Noop, options()).await;
    let begun = frame(HEADERS, END_HEADERS, 1, &head(&[]));
    for (name, what) in [
        ("empty data", frame(DATA, 0, 1, &[])),
        ("priority", frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1])),
        ("windows", frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ("pings", frame(PING, ACK, 0, b"unasked.")),
        ("unknown", frame(0xbe, 0xff, 1, b"whatever")),
    ] {
        let mut raw = Raw::open(&server).await;
        assert!(raw.send(&begun).await);
        let many = what.repeat(1000);
        for _ in 0..100 {
            if !raw.send(&many).await {
                break;
            }
        }
        // It goes on or it ends.
        let _ = raw.pong().await;
        others_are_answered(&server).await;
        println!("{name}: survived");
    }
}

#[tokio::test]
async fn what_breaks_the_protocol_ends_the_connection() {
    let server = TestServer::start(Noop, options()).await;
    let huge = {
        let mut bytes = frame(DATA, 0, 1, &[]);
        bytes[..3].copy_from_slice(&[0xff, 0xff, 0xff]);
        bytes
    };
    for (name, bytes) in [
        ("data without a call", frame(DATA, 0, 1, b"x")),
        (
            "a stream of the server",
            frame(HEADERS, END_HEADERS, 2, &head(&[])),
        ),
        ("stream 0", frame(HEADERS, END_HEADERS, 0, &head(&[]))),
        ("a frame too large", huge),
        ("a short ping", frame(PING, 0, 0, b"short")),
        (
            "no compression",
            frame(HEADERS, END_HEADERS, 1, &[0xff; 32]),
        ),
        ("a continuation of nothing", frame(CONTINUATION, 0, 1, &[])),
        (
            "too large a window",
            frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
        ),
        ("no window at all", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("settings that are none", frame(SETTINGS, 0, 0, b"odd")),
        ("a window of settings too large", settings(&[(4, u32::MAX)])),
    ] {
        let mut raw = Raw::open(&server).await;
        assert!(raw.send(&bytes).await);
        let code = raw.end().await;
        assert!(code.is_some_and(|code| code != 0), "{name}: {code:?}");
    }
    others_are_answered(&server).await;
}
