//! HTTP clients that take their time: at each listener the connection ends, and others are served.

use std::{net::SocketAddr, time::Duration};

use porteiro::server::{HttpLimits, Options, noop::Noop};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::serving::{TestServer, http, options, within};

const SHORT: Duration = Duration::from_millis(50);

async fn server(limits: HttpLimits) -> TestServer {
    let options = Options {
        http: limits,
        ..options()
    };
    TestServer::start(Noop, options).await
}

fn doors(server: &TestServer) -> [SocketAddr; 3] {
    [server.http, server.admin, server.metrics]
}

/// What comes until the connection ends.
async fn rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = within(stream.read_to_end(&mut rest)).await;
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn who_asks_and_does_not_read_is_cut() {
    let server = server(HttpLimits {
        write_timeout: SHORT,
        ..HttpLimits::default()
    })
    .await;
    for door in doors(&server) {
        let mut stream = TcpStream::connect(door).await.unwrap();
        let many = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1_000);
        let mut sent = 0;
        // Until nothing is taken any more, and from there until it is cut.
        while within(stream.write_all(&many)).await.is_ok() {
            sent += many.len();
            assert!(sent < 256 << 20, "it answers for ever");
        }
    }
    assert_eq!(http(server.admin, "GET", "/readyz", "").await.0, 200);
}

#[tokio::test]
async fn who_asks_nothing_more_is_let_go() {
    let server = server(HttpLimits {
        header_timeout: SHORT,
        ..HttpLimits::default()
    })
    .await;
    for door in doors(&server) {
        // Nothing, half a head, and a whole request that is not followed by another.
        for begin in [
            "",
            "GET /readyz HTTP/1.1\r\nhost: x\r\nx-",
            "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n",
        ] {
            let mut stream = TcpStream::connect(door).await.unwrap();
            stream.write_all(begin.as_bytes()).await.unwrap();
            let rest = rest(&mut stream).await;
            assert_eq!(rest.starts_with("HTTP/1.1 "), !rest.is_empty(), "{rest}");
        }
    }
}

#[tokio::test]
async fn a_body_that_does_not_end_is_not_waited_for() {
    let server = server(HttpLimits {
        request_timeout: SHORT,
        ..HttpLimits::default()
    })
    .await;
    for body in [
        "content-length: 100\r\n\r\n{",
        "transfer-encoding: chunked\r\n\r\n5\r\n{\"dom",
    ] {
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        let begin =
            format!("POST /json HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{body}");
        stream.write_all(begin.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_the_others_go_on() {
    let server = server(HttpLimits {
        max_connections: 2,
        ..HttpLimits::default()
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 12];
        within(stream.read_exact(&mut first)).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        open.push(stream);
    }
    let mut third = TcpStream::connect(server.http).await.unwrap();
    assert_eq!(rest(&mut third).await, "");
    // Each listener has its own.
    assert_eq!(http(server.admin, "GET", "/readyz", "").await.0, 200);
    drop(open);
}
