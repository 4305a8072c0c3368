//! What the status of a descriptor says in numbers.

use std::collections::BTreeMap;

use porteiro::{
    model::time::{Span, Timestamp},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
    },
};
use serde_json::json;

use crate::support::{self, REQUEST, message};

const RULES: &str = "
domain: d
descriptors:
- key: plain
  rate_limit: {name: plain, unit: minute, requests_per_unit: 3}
- key: stretched
  rate_limit: {unit: minute, unit_multiplier: 2, requests_per_unit: 3}
- key: free
  rate_limit: {unlimited: true}
";

/// The status of each of these keys, 300 ms after a date.
fn statuses(keys: &[&str], date: u64) -> Vec<DescriptorStatus> {
    let files = BTreeMap::from([("rules.yaml".to_owned(), RULES.to_owned())]);
    let service = support::service(&files, &BTreeMap::new(), Timestamp::from_secs(date));
    service.clock.advance(Span::from_millis(300));
    let descriptor = |key: &&str| json!({"entries": [{"key": key, "value": "x"}]});
    let descriptors: Vec<_> = keys.iter().map(descriptor).collect();
    let request = json!({"domain": "d", "descriptors": descriptors, "hits_addend": 2});
    let request: RateLimitRequest = message(REQUEST, &request);
    service.ask(&request).unwrap().statuses
}

#[test]
fn seconds_are_rounded_up_and_what_is_told_is_the_limit_as_the_rule_has_it() {
    // 19.7 s before the end of a minute, the first one of two.
    let statuses = statuses(&["plain", "stretched"], 1_000_000);
    for (status, name, multiplier, seconds) in [
        (&statuses[0], "plain", None, 20),
        (&statuses[1], "", Some(2), 80),
    ] {
        assert_eq!(status.code(), Code::Ok);
        assert_eq!(status.limit_remaining, 1);
        let reset = status.duration_until_reset.unwrap();
        assert_eq!((reset.seconds, reset.nanos), (seconds, 0), "{name}");
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.name.as_str(), limit.requests_per_unit), (name, 3));
        assert_eq!(
            (limit.unit(), limit.unit_multiplier),
            (Unit::Minute, multiplier)
        );
    }
}

#[test]
fn without_a_limit_there_is_no_end_of_what_is_left() {
    let statuses = statuses(&["free", "none"], 1_000_000);
    for (status, left) in statuses.iter().zip([u32::MAX, 0]) {
        assert_eq!(status.code(), Code::Ok);
        assert_eq!(status.limit_remaining, left);
        assert_eq!(status.current_limit, None);
        assert_eq!(status.duration_until_reset, None);
    }
}
