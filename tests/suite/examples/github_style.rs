//! Hourly quotas told on every answer, and limits that are told only when they refuse.

use porteiro::{model::time::Span, proto::envoy::service::ratelimit::v3::RateLimitResponse};
use serde_json::json;

use super::{Example, Item, START, item, overall};
use crate::{
    contract::{body, header, headers},
    support::{REQUEST, message},
};

fn start() -> Example {
    Example::start("github-style", "github-style")
}

/// A request that reads, as Envoy asks: primary, points, permit.
fn read(client: &str, id: &str) -> Vec<Item> {
    vec![
        item(&[("client", client)]),
        item(&[("secondary", "points"), ("client", client)]).cost(1),
        in_flight(client, id).cost(1),
    ]
}

/// A request that creates something.
fn create(client: &str, id: &str) -> Vec<Item> {
    vec![
        item(&[("client", client)]),
        item(&[("secondary", "points"), ("client", client)]).cost(5),
        item(&[("secondary", "create"), ("client", client)]),
        in_flight(client, id).cost(1),
    ]
}

fn in_flight(client: &str, id: &str) -> Item {
    item(&[
        ("secondary", "in_flight"),
        ("client", client),
        ("lease_id", id),
    ])
}

impl Example {
    /// Asks, lets whoever waits run out of patience, and ends what passed at once.
    async fn done(&self, items: Vec<Item>) -> RateLimitResponse {
        let request = message(REQUEST, &self.json(&items));
        let answer = self.service.settled(&request).await;
        let last = items.into_iter().next_back().unwrap();
        self.ask(&[last.with("isNegativeHits", json!(true))]);
        answer
    }
}

#[tokio::test]
async fn every_answer_tells_the_hourly_quota_of_who_asks() {
    for (client, quota) in [
        ("192.0.2.1", 60_u64),
        ("user/ann", 5_000),
        ("enterprise_app/acme", 15_000),
    ] {
        let api = start();
        api.wait(Span::from_secs(1_234));
        let told = |used: u64| {
            let left = quota - used;
            [
                ("X-RateLimit-Limit", quota.to_string()),
                ("X-RateLimit-Remaining", left.to_string()),
                // The hour began with the first request.
                ("X-RateLimit-Reset", (START + 1_234 + 3_600).to_string()),
                ("X-RateLimit-Used", used.to_string()),
                ("X-RateLimit-Resource", "core".to_owned()),
            ]
        };
        let shown = |answer: &RateLimitResponse| {
            let headers = headers(answer).into_iter().take(5);
            headers
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect::<Vec<_>>()
        };
        let want = |used| {
            told(used)
                .map(|(name, value)| (name.to_owned(), value))
                .to_vec()
        };
        for n in 1..=quota {
            let passed = api.done(read(client, &n.to_string())).await;
            assert_eq!(
                (overall(&passed), headers(&passed).len()),
                (1, 5),
                "{client} {n}"
            );
            assert_eq!(shown(&passed), want(n), "{client}");
            // Slowly enough for the points: fourteen a second, of fifteen.
            if n % 14 == 0 {
                api.wait(Span::from_secs(1));
            }
        }
        let gone = quota / 14;
        let refused = api.done(read(client, "one more")).await;
        assert_eq!(overall(&refused), 2);
        assert_eq!(shown(&refused), want(quota));
        let wait = (3_600 - gone).to_string();
        assert_eq!(header(&refused, "Retry-After"), Some(wait.as_str()));
        assert_eq!(body(&refused)["message"], "API rate limit exceeded.");
        api.wait(Span::from_secs(3_600 - gone));
        assert_eq!(overall(&api.done(read(client, "again")).await), 1);
    }
}

#[test]
fn anonymous_callers_are_addresses_and_v6_neighbours_share() {
    let api = start();
    let asks = |client: &str| api.passes(&[item(&[("client", client)])]);
    assert!((0..60).all(|n| asks(&format!("2001:db8::{n:x}"))));
    assert!(!asks("2001:db8::ffff") && asks("2001:db8:1::1") && asks("192.0.2.7"));
}

#[tokio::test]
async fn points_are_counted_by_method_and_a_refusal_by_them_spends_no_quota() {
    let api = start();
    // 79 × 5 + 505 = 900
    for n in 0..79 {
        assert_eq!(
            overall(&api.done(create("user/ann", &format!("c{n}"))).await),
            1
        );
    }
    for n in 0..505 {
        assert_eq!(
            overall(&api.done(read("user/ann", &format!("r{n}"))).await),
            1,
            "{n}"
        );
    }
    let refused = api.done(read("user/ann", "one more")).await;
    assert_eq!(overall(&refused), 2);
    // The primary quota is what headers tell, and 584 of it are used.
    assert_eq!(header(&refused, "X-RateLimit-Remaining"), Some("4416"));
    assert_eq!(header(&refused, "X-RateLimit-Resource"), Some("core"));
    let wait: u64 = header(&refused, "Retry-After").unwrap().parse().unwrap();
    assert!((1..=120).contains(&wait), "{wait}");
    assert_eq!(
        body(&refused)["message"],
        "You have exceeded a secondary rate limit."
    );
    assert_eq!(overall(&api.done(read("user/bob", "x")).await), 1);
    api.wait(Span::from_secs(wait));
    let passed = api.done(read("user/ann", "after")).await;
    assert_eq!(header(&passed, "X-RateLimit-Remaining"), Some("4415"));
}

#[tokio::test]
async fn eighty_requests_a_minute_create_content() {
    let api = start();
    for n in 0..80 {
        assert_eq!(
            overall(&api.done(create("user/ann", &n.to_string())).await),
            1
        );
    }
    let refused = api.done(create("user/ann", "one more")).await;
    assert_eq!(overall(&refused), 2);
    assert!(header(&refused, "Retry-After").is_some());
    assert_eq!(overall(&api.done(read("user/ann", "a read")).await), 1);
}

#[tokio::test]
async fn a_hundred_requests_are_in_flight_at_once() {
    let api = start();
    let begin = |client: &str, id: &str| message(REQUEST, &api.json(&read(client, id)));
    for n in 0..100 {
        let begun = api
            .service
            .settled(&begin("user/ann", &n.to_string()))
            .await;
        assert_eq!(overall(&begun), 1);
    }
    let refused = api.service.settled(&begin("user/ann", "100")).await;
    assert_eq!(overall(&refused), 2);
    assert_eq!(header(&refused, "X-RateLimit-Remaining"), Some("4900"));
    assert!(header(&refused, "Retry-After").is_some());
    assert_eq!(
        overall(&api.service.settled(&begin("user/bob", "0")).await),
        1
    );
    // The end of one lets the next in.
    api.ask(&[in_flight("user/ann", "17")
        .cost(1)
        .with("isNegativeHits", json!(true))]);
    assert_eq!(
        overall(&api.service.settled(&begin("user/ann", "101")).await),
        1
    );
}
