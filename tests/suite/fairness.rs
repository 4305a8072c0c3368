//! One connection whose calls wait beside others that have some, too.

use porteiro::server::{Options, Transport};

use crate::{
    frames::Raw,
    held::Held,
    serving::{TestServer, ask, eventually, options, within},
};

#[tokio::test]
async fn one_connection_gets_half_of_the_places_for_calls_that_wait() {
    let held = Held::new();
    // Eight for each of the two workers.
    let transport = Transport {
        max_calls: 16,
        ..Transport::default()
    };
    let server = TestServer::start(
        held.clone(),
        Options {
            transport,
            ..options()
        },
    )
    .await;
    let mut greedy = Raw::open(&server).await;
    greedy.calls(20, "greedy").await;
    assert!(greedy.pong().await && greedy.pong().await);
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 16);
    // On the other worker, and on the same one: four places are left there.
    let mut elsewhere = Raw::open(&server).await;
    assert!(elsewhere.pong().await);
    let mut second = Raw::open(&server).await;
    second.calls(20, "second").await;
    assert!(second.pong().await && second.pong().await);
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 16 + 18);
    assert_eq!(server.stats.open(), [2, 1]);
    let _elsewhere = Raw::open(&server).await;
    eventually("open", || server.stats.open() == [2, 2]).await;
    let mut modest = server.client().await;
    let mut again = modest.clone();
    let call = tokio::spawn(async move { modest.should_rate_limit(ask("d", "k", "v")).await });
    eventually("open", || server.stats.open() == [3, 2]).await;
    // Who gave its places back has its share again.
    held.go.add_permits(7);
    within(call).await.unwrap().unwrap();
    held.go.add_permits(1);
    within(again.should_rate_limit(ask("d", "k", "v")))
        .await
        .unwrap();
    assert_eq!(server.counter("porteiro_calls_shed_total").await, 16 + 18);
}
