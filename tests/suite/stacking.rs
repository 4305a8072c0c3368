//! Stacked limits decided as one, through the service.

use std::collections::BTreeMap;

use porteiro::{
    model::time::Timestamp,
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};
use serde_json::json;

use crate::support::{REQUEST, message, service};

const RULES: &str = "
domain: api
stacking: all_or_nothing
descriptors:
- {key: tenant, limits: [{rate: 600/minute, algorithm: token_bucket}]}
- {key: user, limits: [{rate: 100/minute}]}
- {key: client, limits: [{rate: 10/s, algorithm: token_bucket}]}
";

fn request(entries: &[(&str, &str)], hits: u64) -> RateLimitRequest {
    let one = |(key, value): &(&str, &str)| json!({"entries": [{"key": key, "value": value}], "hits_addend": hits.to_string()});
    let descriptors: Vec<_> = entries.iter().map(one).collect();
    message(
        REQUEST,
        &json!({"domain": "api", "descriptors": descriptors}),
    )
}

fn passes(answer: &RateLimitResponse) -> bool {
    answer.overall_code == 1
}

#[test]
fn a_user_that_is_refused_a_hundred_times_costs_its_tenant_nothing() {
    let files = BTreeMap::from([("api.yaml".to_owned(), RULES.to_owned())]);
    let service = service(&files, &BTreeMap::new(), Timestamp::from_secs(1_000));
    let ask = |client: &str| {
        let entries = [("tenant", "acme"), ("user", "ana"), ("client", client)];
        service.ask(&request(&entries, 1)).unwrap()
    };
    let left = || {
        let peek = request(&[("tenant", "acme")], 0);
        service.ask(&peek).unwrap().statuses[0].limit_remaining
    };
    for client in 0..100 {
        assert!(passes(&ask(&client.to_string())), "client {client}");
    }
    assert_eq!(left(), 500);
    for client in 0..100 {
        let refused = ask(&client.to_string());
        let over: Vec<i32> = refused.statuses.iter().map(|status| status.code).collect();
        assert_eq!(over, [1, 2, 1], "the user's limit refuses, and no other");
        assert_eq!(left(), 500);
    }
}
