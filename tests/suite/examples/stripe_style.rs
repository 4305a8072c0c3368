//! Rates of accounts, of endpoints and of single objects, work in flight, and a shedder for the fleet.

use porteiro::{model::time::Span, proto::envoy::service::ratelimit::v3::RateLimitResponse};
use serde_json::json;

use super::{Example, Item, item, overall};
use crate::{
    contract::{body, header, headers},
    support::{REQUEST, message},
};

fn start() -> Example {
    Example::start("stripe-style", "stripe-style")
}

fn rate(account: &str, mode: &str, method: &str) -> Item {
    item(&[("account", account), ("mode", mode), ("method", method)])
}

/// Which limit refused.
fn name(answer: &RateLimitResponse) -> Option<&str> {
    header(answer, "X-RateLimit-Name")
}

#[test]
fn an_account_reads_and_writes_a_hundred_a_second_and_a_quarter_of_it_in_test_mode() {
    for (account, mode, method, most) in [
        ("acct_1", "live", "read", 100),
        ("acct_1", "live", "write", 100),
        ("acct_1", "test", "read", 25),
        ("acct_1", "test", "write", 25),
        ("acct_large", "live", "read", 500),
        ("acct_large", "live", "write", 250),
        ("acct_large", "test", "read", 25),
        ("acct_large", "test", "write", 25),
    ] {
        let api = start();
        for n in 0..most {
            let passed = api.ask(&[rate(account, mode, method)]);
            assert_eq!(
                (overall(&passed), headers(&passed)),
                (1, vec![]),
                "{n} of {most}"
            );
        }
        let refused = api.ask(&[rate(account, mode, method)]);
        let want = [
            ("Retry-After", "1"),
            ("X-RateLimit-Reason", "rate"),
            ("X-RateLimit-Name", "global-rate"),
            ("Cache-Control", "no-store"),
            ("Content-Type", "application/json"),
        ];
        assert_eq!(headers(&refused), want);
        assert_eq!(body(&refused)["error"]["reason"], "global-rate");
        // Everybody and everything else goes on.
        for (other, mode, method) in [
            ("acct_2", mode, method),
            (
                account,
                if mode == "live" { "test" } else { "live" },
                method,
            ),
            (
                account,
                mode,
                if method == "read" { "write" } else { "read" },
            ),
        ] {
            assert!(api.passes(&[rate(other, mode, method)]));
        }
        // A second brings as many again.
        api.wait(Span::from_secs(1));
        assert!((0..most).all(|_| api.passes(&[rate(account, mode, method)])));
        assert!(!api.passes(&[rate(account, mode, method)]));
    }
}

#[test]
fn an_endpoint_and_an_object_have_limits_of_their_own() {
    let api = start();
    let search = || {
        api.ask(&[
            rate("acct_1", "live", "read"),
            item(&[("endpoint", "search"), ("account", "acct_1")]),
        ])
    };
    assert!((0..20).all(|_| overall(&search()) == 1));
    for _ in 0..200 {
        let refused = search();
        assert_eq!(
            (overall(&refused), name(&refused)),
            (2, Some("endpoint-rate"))
        );
    }
    // Which cost the account nothing: 80 of its 100 are left.
    assert!((0..80).all(|_| api.passes(&[rate("acct_1", "live", "read")])));
    assert!(!api.passes(&[rate("acct_1", "live", "read")]));
    let update = |id: &str| api.ask(&[item(&[("update", "payment_intent"), ("id", id)])]);
    assert!((0..1_000).all(|_| overall(&update("pi_17")) == 1));
    assert_eq!(name(&update("pi_17")), Some("resource-specific"));
    assert_eq!(overall(&update("pi_18")), 1);
    // The path of another endpoint is no object.
    assert!((0..1_001).all(|_| overall(&update("/v1/charges")) == 1));
}

fn of_account(account: &str, id: &str) -> Item {
    item(&[
        ("in_flight", "account"),
        ("account", account),
        ("lease_id", id),
    ])
    .cost(1)
}

fn of_fleet(id: &str, criticality: &str) -> Item {
    item(&[
        ("in_flight", "fleet"),
        ("lease_id", id),
        ("criticality", criticality),
    ])
    .cost(1)
}

/// Begins work and leaves it in flight.
async fn begin(api: &Example, items: &[Item]) -> RateLimitResponse {
    api.service
        .settled(&message(REQUEST, &api.json(items)))
        .await
}

#[tokio::test]
async fn work_in_flight_is_limited_apart_from_the_rate() {
    let api = start();
    let work = |n: u64| {
        [
            rate("acct_1", "live", "read"),
            of_account("acct_1", &n.to_string()),
        ]
    };
    for n in 0..20 {
        assert_eq!(overall(&begin(&api, &work(n)).await), 1);
    }
    let refused = begin(&api, &work(20)).await;
    assert_eq!(
        (overall(&refused), name(&refused)),
        (2, Some("global-concurrency"))
    );
    assert_eq!(header(&refused, "X-RateLimit-Reason"), Some("concurrency"));
    // The refusal took none of the rate.
    assert!((0..80).all(|_| api.passes(&[rate("acct_1", "live", "read")])));
    api.ask(&[of_account("acct_1", "3").with("isNegativeHits", json!(true))]);
    api.wait(Span::from_secs(1));
    assert_eq!(overall(&begin(&api, &work(21)).await), 1);
}

#[tokio::test]
async fn the_shedder_keeps_a_fifth_of_the_fleet_for_critical_methods() {
    let api = start();
    let work = |n: u64, class: &str| [of_fleet(&n.to_string(), class)];
    for n in 0..40 {
        assert_eq!(
            overall(&begin(&api, &work(n, "sheddable_plus")).await),
            1,
            "{n}"
        );
    }
    let shed = begin(&api, &work(40, "sheddable_plus")).await;
    assert_eq!((overall(&shed), name(&shed)), (2, Some("fleet-usage")));
    // The last ten of the fifty are for what is critical.
    for n in 50..60 {
        assert_eq!(overall(&begin(&api, &work(n, "critical")).await), 1, "{n}");
    }
    assert_eq!(overall(&begin(&api, &work(60, "critical")).await), 2);
    // One ends: still nothing for the rest, until the fleet is below 80 %.
    api.ask(&[of_fleet("50", "critical").with("isNegativeHits", json!(true))]);
    assert_eq!(overall(&begin(&api, &work(61, "sheddable_plus")).await), 2);
    assert_eq!(overall(&begin(&api, &work(62, "critical")).await), 1);
}
