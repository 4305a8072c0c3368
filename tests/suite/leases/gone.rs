//! Leases of proxies whose connections are gone.

use std::{sync::Arc, time::Duration};

use porteiro::{
    model::{
        key::CounterKey,
        lease::{Decision, Outcome, Peer, ReleaseStatus},
        time::Span,
    },
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
    },
    rules::concurrency::ConcurrencyRule,
    server::{Options, Transport},
    store::lease::{Answer, Ask, Item, Naming},
};
use tonic::{Request, transport::Channel};

use crate::{
    leases::{Bench, KEY, limit, millis, rule},
    serving::{TestServer, ask, code, eventually, options, within},
    support::Service,
};
const DEAD: Peer = Peer(CounterKey::from_bits(100));
const ALIVE: Peer = Peer(CounterKey::from_bits(101));

impl Bench {
    fn through(&mut self, rule: &Arc<ConcurrencyRule>, peer: Peer, name: u128) -> Answer {
        let items = [Item::one(KEY, rule)];
        let answer = self.ask(&Ask {
            naming: Naming::Named(CounterKey::from_bits(name)),
            peer: Some(peer),
            ..Ask::new(&items)
        });
        assert_eq!(answer.decision, Decision::Granted);
        answer
    }

    fn end(&mut self, name: u128) -> ReleaseStatus {
        let name = CounterKey::from_bits(name);
        self.book
            .release_named(KEY, name, Outcome::Success, None, self.now)
    }
}

#[test]
fn leases_of_a_peer_that_is_gone_are_cut_short() {
    let mut bench = Bench::new();
    let rule = limit(5);
    bench.through(&rule, DEAD, 1);
    bench.through(&rule, ALIVE, 2);
    bench.book.peer_gone(DEAD, bench.now);
    // A second without a connection, and ten seconds that are left then.
    bench.pass(10_999);
    assert_eq!(bench.in_flight(KEY), 2);
    bench.pass(1);
    assert_eq!(bench.in_flight(KEY), 1);
    bench.pass(5);
    assert_eq!(bench.end(1), ReleaseStatus::Late { by: millis(5) });
    assert!(matches!(bench.end(2), ReleaseStatus::Released { .. }));
    assert_eq!(bench.book.totals().cut_short, 1);
    assert_eq!(bench.book.limits(bench.now)[0].counts.cut_short, 1);
    bench.audit();
}

/// Nobody looked for half a minute: the cut is as exact as the expiry.
#[test]
fn a_cut_that_nobody_saw_in_time_counts_from_when_it_was_due() {
    let mut bench = Bench::new();
    bench.through(&limit(1), DEAD, 1);
    bench.book.peer_gone(DEAD, bench.now);
    bench.pass(29_000);
    assert_eq!(bench.end(1), ReleaseStatus::Late { by: millis(18_000) });
    bench.audit();
}

#[test]
fn a_peer_that_comes_back_in_time_loses_nothing() {
    let mut bench = Bench::new();
    let rule = limit(5);
    bench.through(&rule, DEAD, 1);
    bench.book.peer_gone(DEAD, bench.now);
    bench.pass(999);
    bench.book.peer_back(DEAD, bench.now);
    bench.pass(29_000);
    assert_eq!(bench.in_flight(KEY), 1);
    assert_eq!(bench.book.totals().cut_short, 0);
    // Too late: what is cut stays cut, what it takes afterwards lives as long as any.
    bench.through(&rule, DEAD, 2);
    bench.book.peer_gone(DEAD, bench.now);
    bench.pass(1_001);
    bench.book.peer_back(DEAD, bench.now);
    bench.through(&rule, DEAD, 3);
    bench.pass(9_999);
    assert_eq!(bench.in_flight(KEY), 1);
    assert!(matches!(bench.end(2), ReleaseStatus::Late { .. }));
    assert!(matches!(bench.end(3), ReleaseStatus::Released { .. }));
    bench.audit();
}

#[test]
fn a_cut_never_prolongs() {
    let mut bench = Bench::new();
    let short = rule(1, |rule| rule.lease_ttl = Span::from_secs(3));
    bench.through(&short, DEAD, 1);
    bench.book.peer_gone(DEAD, bench.now);
    bench.pass(3_000);
    assert_eq!(bench.in_flight(KEY), 0);
    bench.audit();
}

#[test]
fn each_rule_has_its_own_patience_and_one_may_have_none() {
    const PATIENT: CounterKey = CounterKey::from_bits(2);
    const NEVER: CounterKey = CounterKey::from_bits(3);
    let mut bench = Bench::new();
    let patient = rule(1, |rule| {
        rule.gone.after = Some(Span::from_secs(4));
        rule.gone.grace = Span::from_secs(2);
    });
    let never = rule(1, |rule| rule.gone.after = None);
    let items = [
        Item::one(KEY, &limit(1)),
        Item::one(PATIENT, &patient),
        Item::one(NEVER, &never),
    ];
    let naming = Naming::Named(CounterKey::from_bits(7));
    let all = bench.ask(&Ask {
        naming,
        peer: Some(DEAD),
        ..Ask::new(&items)
    });
    assert_eq!(all.leases.len(), 3);
    bench.book.peer_gone(DEAD, bench.now);
    let mut ends = Vec::new();
    for second in 1..=30 {
        bench.pass(1_000);
        ends.push((
            second,
            [KEY, PATIENT, NEVER].map(|key| bench.in_flight(key)),
        ));
    }
    let first = |place: usize| {
        ends.iter()
            .find(|(_, left)| left[place] == 0)
            .map(|end| end.0)
    };
    assert_eq!(
        [first(0), first(1), first(2)],
        [Some(11), Some(6), Some(30)]
    );
}

/// Whoever was told a lease id may come back with it through any connection.
#[test]
fn leases_that_were_issued_do_not_hang_on_connections() {
    let mut bench = Bench::new();
    let items = [Item::one(KEY, &limit(1))];
    let _ = bench.ask(&Ask {
        peer: Some(DEAD),
        ..Ask::new(&items)
    });
    bench.book.peer_gone(DEAD, bench.now);
    bench.pass(29_999);
    assert_eq!(bench.in_flight(KEY), 1);
}

/// Whoever waits gets the permit at the moment of the cut expiry, not at that of the TTL.
#[test]
fn a_cut_serves_who_waits() {
    let mut bench = Bench::new();
    let rule = limit(1);
    bench.through(&rule, DEAD, 1);
    let items = [Item::one(KEY, &rule)];
    let ticket = bench.wait(&Ask {
        max_wait: Some(Span::from_secs(20)),
        ..Ask::new(&items)
    });
    bench.book.peer_gone(DEAD, bench.now);
    let mut steps = 0;
    let settled = loop {
        let due = bench.book.next_due().unwrap();
        bench.now = due;
        if let Some(settled) = bench.settled().pop() {
            break settled;
        }
        steps += 1;
        assert!(steps < 5, "the cut is not among what is due");
    };
    assert_eq!((settled.0, settled.1.decision), (ticket, Decision::Granted));
    assert_eq!(settled.1.waited, Span::from_secs(11));
}

const RULES: &str = "
domain: d
descriptors:
  - key: upstream
    concurrency: {limit: 10, connection_gone_after: 2s, connection_grace: 5s}
";

struct Proxy {
    client: RateLimitServiceClient<Channel>,
    node: &'static str,
}

impl Proxy {
    async fn connect(server: &TestServer, node: &'static str) -> Self {
        let client = RateLimitServiceClient::new(server.channel().await);
        Self { client, node }
    }

    async fn take(&mut self, lease: &str) {
        let mut request = Request::new(taking(lease));
        if !self.node.is_empty() {
            let node = self.node.parse().unwrap();
            request.metadata_mut().insert("x-node-id", node);
        }
        let answer = within(self.client.should_rate_limit(request))
            .await
            .unwrap();
        assert_eq!(code(answer.get_ref()), "OK");
    }
}

fn taking(lease: &str) -> RateLimitRequest {
    let mut request = ask("d", "upstream", "search");
    let entries = &mut request.descriptors[0].entries;
    let mut id = entries[0].clone();
    (id.key, id.value) = ("lease_id".to_owned(), lease.to_owned());
    entries.push(id);
    request
}

/// Moves both hands: that of the server and that of what it serves.
fn pass(server: &TestServer, service: &Service, span: Span) {
    server.clock.advance(span);
    service.clock.advance(span);
}

fn cut_and_left(service: &Service) -> (u64, u64) {
    let leases = service.engine.leases();
    let limits = leases.limits(service.engine.clock().now());
    let limit = &limits[0].1[0];
    (limit.counts.cut_short, limit.leases)
}

async fn no_connections(server: &TestServer, left: usize) {
    eventually("closed", || {
        server.stats.open().iter().sum::<usize>() == left
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_dies_frees_its_leases_early() {
    let (server, service) = TestServer::with_limiter(RULES).await;
    let mut first = Proxy::connect(&server, "").await;
    let mut second = Proxy::connect(&server, "").await;
    first.take("a").await;
    second.take("b").await;
    drop(first);
    no_connections(&server, 1).await;
    // The same address has another connection.
    pass(&server, &service, Span::from_secs(8));
    assert_eq!(cut_and_left(&service), (0, 2));
    drop(second);
    no_connections(&server, 0).await;
    pass(&server, &service, Span::from_millis(6_999));
    assert_eq!(cut_and_left(&service), (2, 2));
    pass(&server, &service, Span::from_millis(1));
    assert_eq!(cut_and_left(&service), (2, 0));
}

#[tokio::test]
async fn nodes_that_name_themselves_are_told_apart() {
    let (server, service) = TestServer::with_limiter(RULES).await;
    let mut first = Proxy::connect(&server, "one").await;
    let mut second = Proxy::connect(&server, "two").await;
    first.take("a").await;
    second.take("b").await;
    drop(first);
    no_connections(&server, 1).await;
    pass(&server, &service, Span::from_secs(7));
    assert_eq!(cut_and_left(&service), (1, 1));
}

/// The server asks connections to leave because of their age: that says nothing about the proxy.
#[tokio::test]
async fn connections_that_were_asked_to_leave_do_not_count() {
    let options = Options {
        transport: Transport {
            max_idle: Some(Duration::from_millis(20)),
            ..Transport::default()
        },
        ..options()
    };
    let (server, service) = TestServer::with_limiter_and(RULES, options).await;
    let mut proxy = Proxy::connect(&server, "").await;
    proxy.take("a").await;
    no_connections(&server, 0).await;
    pass(&server, &service, Span::from_secs(20));
    assert_eq!(cut_and_left(&service), (0, 1));
}
