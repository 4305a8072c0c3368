//! Limits on work in flight, driven as Envoy drives them: `ShouldRateLimit` only.

use std::collections::BTreeMap;

use porteiro::{
    model::time::{Span, Timestamp},
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};
use serde_json::json;
use tokio::task;

use crate::support::{REQUEST, Service, message, now, service};

const RULES: &str = "
domain: edge
answer: {headers: [ietf, reason, retry_after]}
descriptors:
- key: upstream
  value: search
  descriptors:
  - key: lease_id
    concurrency: {limit: 2, lease_ttl: 10s}
- key: upstream
  value: anonymous
  concurrency: {limit: 1, lease_ttl: 10s}
";

fn start(rules: &str) -> Service {
    let files = BTreeMap::from([("edge.yaml".to_owned(), rules.to_owned())]);
    service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000))
}

fn request(entries: &[(&str, &str)], release: bool) -> RateLimitRequest {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect();
    let descriptor = json!({"entries": entries, "hits_addend": "1", "is_negative_hits": release});
    message(
        REQUEST,
        &json!({"domain": "edge", "descriptors": [descriptor]}),
    )
}

fn acquire(lease: &str) -> RateLimitRequest {
    request(&[("upstream", "search"), ("lease_id", lease)], false)
}

/// Would another one pass? Takes nothing.
fn look() -> RateLimitRequest {
    let entries =
        json!([{"key": "upstream", "value": "search"}, {"key": "lease_id", "value": "any"}]);
    let descriptor = json!({"entries": entries, "hits_addend": "0"});
    message(
        REQUEST,
        &json!({"domain": "edge", "descriptors": [descriptor]}),
    )
}

/// As Envoy sends it when the stream is done.
fn release(lease: &str) -> RateLimitRequest {
    let entries = [
        ("upstream", "search"),
        ("lease_id", lease),
        ("status", "200"),
        ("flags", "-"),
        ("duration_ms", "3"),
    ];
    request(&entries, true)
}

impl Service {
    /// Asks, and lets whoever waits run out of patience.
    pub(crate) async fn settled(&self, request: &RateLimitRequest) -> RateLimitResponse {
        let asked = self.rls.answer(request, self.clock.now(), None);
        tokio::pin!(asked);
        // The first poll decides, or begins to wait.
        let early = tokio::select! {
            biased;
            answer = &mut asked => Some(answer),
            () = task::yield_now() => None,
        };
        if let Some(answer) = early {
            return answer.unwrap();
        }
        self.clock.advance(Span::from_millis(5));
        self.engine.leases().turn(self.clock.now());
        asked.await.unwrap()
    }

    fn in_flight(&self) -> u64 {
        let limits = self.engine.leases().limits(self.clock.now());
        limits
            .iter()
            .flat_map(|(_, limits)| limits)
            .map(|limit| limit.in_flight)
            .sum()
    }
}

fn passes(answer: &RateLimitResponse) -> bool {
    answer.overall_code == 1
}

#[tokio::test]
async fn leases_named_by_the_request_id_bound_what_is_in_flight() {
    let service = start(RULES);
    assert!(passes(&service.settled(&acquire("a")).await));
    assert!(passes(&service.settled(&acquire("b")).await));
    let refused = service.settled(&acquire("c")).await;
    assert!(!passes(&refused));
    let status = &refused.statuses[0];
    assert_eq!(status.limit_remaining, 0);
    assert_eq!(status.current_limit.as_ref().unwrap().requests_per_unit, 2);
    assert!(status.duration_until_reset.unwrap().seconds >= 1);
    // Envoy sends the release of a refused request too: it takes nothing from the others.
    assert!(passes(&service.settled(&release("c")).await));
    assert_eq!(service.in_flight(), 2);
    assert!(passes(&service.settled(&release("a")).await));
    assert_eq!(service.in_flight(), 1);
    assert!(
        passes(&service.settled(&acquire("c")).await),
        "a retry under the same id counts"
    );
    assert_eq!(service.in_flight(), 2);
}

#[tokio::test]
async fn a_retry_of_the_acquire_takes_no_second_permit() {
    let service = start(RULES);
    for _ in 0..5 {
        assert!(passes(&service.settled(&acquire("a")).await));
    }
    assert_eq!(service.in_flight(), 1);
    for _ in 0..2 {
        assert!(passes(&service.settled(&release("a")).await));
    }
    assert_eq!(service.in_flight(), 0);
}

#[tokio::test]
async fn a_release_that_overtakes_its_acquire_leaves_nothing_in_flight() {
    let service = start(RULES);
    assert!(passes(&service.settled(&release("a")).await));
    assert!(passes(&service.settled(&acquire("a")).await));
    assert_eq!(service.in_flight(), 0);
}

#[tokio::test]
async fn leases_that_nobody_releases_end_by_their_ttl() {
    let service = start(RULES);
    for lease in ["a", "b"] {
        assert!(passes(&service.settled(&acquire(lease)).await));
    }
    service.clock.advance(Span::from_nanos(9_999_999_999));
    assert!(!passes(&service.settled(&acquire("c")).await));
    service.clock.advance(Span::from_nanos(1));
    assert!(passes(&service.settled(&acquire("d")).await));
    assert_eq!(service.in_flight(), 1);
}

#[tokio::test]
async fn a_keep_alive_client_is_not_refused_for_its_own_previous_request() {
    let service = start(RULES);
    for lease in ["a", "b"] {
        assert!(passes(&service.settled(&acquire(lease)).await));
    }
    // The next request comes before the release of the previous one.
    let next = acquire("c");
    let next = service.rls.answer(&next, service.clock.now(), None);
    tokio::pin!(next);
    tokio::select! {
        biased;
        answer = &mut next => panic!("it should wait for the release: {answer:?}"),
        () = task::yield_now() => {}
    }
    assert!(passes(&service.settled(&release("a")).await));
    assert!(passes(&next.await.unwrap()));
    assert_eq!(service.in_flight(), 2);
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_leaves_nothing_behind() {
    let service = start(RULES);
    for lease in ["a", "b"] {
        assert!(passes(&service.settled(&acquire(lease)).await));
    }
    {
        let next = acquire("c");
        let next = service.rls.answer(&next, service.clock.now(), None);
        tokio::pin!(next);
        tokio::select! {
            biased;
            _ = &mut next => panic!("it should wait"),
            () = task::yield_now() => {}
        }
    }
    assert!(passes(&service.settled(&release("a")).await));
    assert_eq!(service.in_flight(), 1, "the permit went to nobody");
}

#[tokio::test]
async fn the_marker_entry_releases_for_proxies_without_negative_hits() {
    let service = start(RULES);
    assert!(passes(&service.settled(&acquire("a")).await));
    let entries = [("upstream", "search"), ("lease_id", "a"), ("op", "release")];
    assert!(passes(&service.settled(&request(&entries, false)).await));
    assert_eq!(service.in_flight(), 0);
}

#[tokio::test]
async fn anonymous_refusals_are_counted_against_their_releases() {
    let service = start(RULES);
    let one = |release| request(&[("upstream", "anonymous")], release);
    assert!(passes(&service.settled(&one(false)).await));
    assert!(!passes(&service.settled(&one(false)).await));
    assert!(
        passes(&service.settled(&one(true)).await),
        "the release of the refused one"
    );
    assert_eq!(service.in_flight(), 1);
    assert!(
        passes(&service.settled(&one(true)).await),
        "the release of the granted one"
    );
    assert_eq!(service.in_flight(), 0);
}

#[tokio::test]
async fn a_refusal_tells_the_contract() {
    let service = start(RULES);
    for lease in ["a", "b"] {
        assert!(passes(&service.settled(&acquire(lease)).await));
    }
    let refused = service.settled(&acquire("c")).await;
    let header = |name: &str| {
        let headers = &refused.response_headers_to_add;
        let found = headers
            .iter()
            .find(|header| header.key.eq_ignore_ascii_case(name));
        found.map(|header| header.value.clone()).unwrap_or_default()
    };
    assert_eq!(
        header("RateLimit-Policy"),
        "\"2-at-once\";q=2;qu=\"concurrent-requests\""
    );
    assert_eq!(header("RateLimit"), "\"2-at-once\";r=0");
    assert_eq!(header("X-RateLimit-Reason"), "concurrency");
    assert_eq!(header("Retry-After"), "1");
}

#[test]
fn rate_and_concurrency_fall_together_under_all_or_nothing() {
    let rules = "
domain: edge
stacking: all_or_nothing
descriptors:
- key: tenant
  rate_limit: {unit: minute, requests_per_unit: 3}
- key: upstream
  value: search
  descriptors: [{key: lease_id, concurrency: {limit: 1}}]
";
    let service = start(rules);
    let both = |lease: &str| -> RateLimitRequest {
        let descriptor = |entries: serde_json::Value| json!({"entries": entries});
        let tenant = descriptor(json!([{"key": "tenant", "value": "acme"}]));
        let upstream = descriptor(json!([
            {"key": "upstream", "value": "search"}, {"key": "lease_id", "value": lease}
        ]));
        message(
            REQUEST,
            &json!({"domain": "edge", "descriptors": [tenant, upstream]}),
        )
    };
    let first = service.ask(&both("a")).unwrap();
    assert!(passes(&first));
    assert_eq!(first.statuses[0].limit_remaining, 2);
    // No time to wait: half of nothing.
    let refused = now(service
        .rls
        .answer(&both("b"), service.clock.now(), Some(Span::ZERO)));
    let refused = refused.unwrap();
    assert!(!passes(&refused));
    assert_eq!(
        refused.statuses[0].limit_remaining, 2,
        "the tenant was not charged"
    );
    assert_eq!(service.in_flight(), 1);
}

/// Ten a second, in a queue of five.
const SHAPER: &str = "
domain: edge
descriptors:
- key: held
  limits: [{rate: 10/1s, burst: 5, algorithm: leaky_queue, hold: true}]
- key: refused
  limits: [{rate: 10/1s, burst: 5, algorithm: leaky_queue}]
";

#[tokio::test(start_paused = true)]
async fn the_shaper_holds_a_request_until_its_slot() {
    let service = start(SHAPER);
    let held = request(&[("held", "x")], false);
    let ask = |timeout| service.rls.answer(&held, service.clock.now(), timeout);
    // The first slot is now, the second a tenth of a second later, and so on.
    let both = async { tokio::join!(ask(None), ask(None), ask(None)) };
    let (first, second, third) = both.await;
    assert!(
        [first, second, third]
            .iter()
            .all(|answer| passes(answer.as_ref().unwrap()))
    );
    // The next slot is 300 ms away: too far for a caller that waits 500 ms and needs half of it.
    let timeout = Some(Span::from_millis(500));
    let refused = ask(timeout).await.unwrap();
    assert!(!passes(&refused));
    // Whoever goes away while it is held gives its slot back.
    {
        let gone = ask(None);
        tokio::pin!(gone);
        tokio::select! {
            biased;
            _ = &mut gone => panic!("it should be held"),
            () = task::yield_now() => {}
        }
    }
    service.clock.advance(Span::from_millis(50));
    assert!(
        passes(&ask(timeout).await.unwrap()),
        "the slot is 250 ms away now"
    );
}

#[test]
fn the_shaper_without_hold_refuses_what_would_have_to_wait() {
    let service = start(SHAPER);
    let shaped = request(&[("refused", "x")], false);
    assert!(passes(&service.ask(&shaped).unwrap()));
    for _ in 0..3 {
        assert!(
            !passes(&service.ask(&shaped).unwrap()),
            "nothing is taken by refusals"
        );
    }
    service.clock.advance(Span::from_millis(100));
    assert!(passes(&service.ask(&shaped).unwrap()));
}

#[tokio::test]
async fn after_a_start_a_quarantine_waits_for_leases_of_the_life_before() {
    for (mode, closed) in [
        ("forget", 0),
        ("reattach", 500),
        ("quarantine", 10_000),
        ("snapshot", 10_000),
    ] {
        let changed = format!("lease_ttl: 10s, on_restart: {mode}, hint_jitter: 0");
        let service = start(&RULES.replace("lease_ttl: 10s", &changed));
        for (passed, granted) in [(0, closed == 0), (closed, true)] {
            service.clock.advance(Span::from_millis(passed));
            let answer = service.settled(&acquire(&format!("{mode}-{passed}"))).await;
            assert_eq!(passes(&answer), granted, "{mode} after {passed} ms");
            if !granted {
                let told = closed.div_ceil(1_000).to_string();
                let mut headers = answer.response_headers_to_add.iter();
                let hint = headers.find(|header| header.key == "Retry-After");
                assert_eq!(hint.unwrap().value, told, "{mode}");
                assert_eq!(answer.statuses[0].limit_remaining, 0, "{mode}");
                let looked = service.settled(&look()).await;
                assert!(!passes(&looked), "{mode}");
            }
        }
    }
}
