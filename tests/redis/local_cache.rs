//! What remembered refusals count: the reference's `over_limit_with_local_cache`.

use std::collections::BTreeMap;

use porteiro::{model::time::Timestamp, telemetry::rule::RuleStat};
use serde_json::json;

use crate::support::{REQUEST, Service, message, service};

const RULES: &str = "
domain: edge
descriptors:
- key: k
  rate_limit: {unit: minute, requests_per_unit: 6}
- key: shadow
  rate_limit: {unit: minute, requests_per_unit: 6}
  shadow_mode: true
";

/// Total, over, shadow and over with local cache of a key.
fn counted(service: &Service, key: &str) -> [u64; 4] {
    let mut counted = [0; 4];
    service.engine.paths().for_each(|path, sums| {
        if path == format!("edge.{key}") {
            counted = [
                RuleStat::TotalHits,
                RuleStat::OverLimit,
                RuleStat::ShadowMode,
                RuleStat::OverLimitWithLocalCache,
            ]
            .map(|stat| sums[stat as usize]);
        }
    });
    counted
}

#[test]
fn a_remembered_refusal_is_counted_as_the_references_local_cache_counts() {
    let files = BTreeMap::from([("edge.yaml".to_owned(), RULES.to_owned())]);
    let memory = BTreeMap::from([("LOCAL_CACHE_SIZE_IN_BYTES".to_owned(), "1000000".to_owned())]);
    for (env, local) in [(BTreeMap::new(), 0), (memory, 3)] {
        let service = service(&files, &env, Timestamp::from_secs(1_000_020));
        for (key, shadowed) in [("k", 0), ("shadow", 6)] {
            let ask = |hits: u32| {
                let entries = json!([{"key": key, "value": "v"}]);
                let request = json!({
                    "domain": "edge",
                    "descriptors": [{"entries": entries}],
                    "hits_addend": hits,
                });
                service.ask(&message(REQUEST, &request)).unwrap()
            };
            ask(6);
            // The store refuses, and is remembered; the cases N13 and N14 follow.
            ask(3);
            assert_eq!(counted(&service, key), [9, 3, shadowed / 2, 0], "{key}");
            ask(3);
            assert_eq!(counted(&service, key), [12, 6, shadowed, local], "{key}");
        }
    }
}
