//! The bodies of `fuzz/`, with bytes of a seeded generator: pieces of right input, torn and joined.
//! `cargo fuzz` finds more; this keeps the bodies alive on the stable compiler.

#[path = "../../fuzz/bodies.rs"]
mod bodies;

use porteiro::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use proptest::{collection::vec, prelude::*, sample::Index};
use prost::Message as _;

use crate::serving::ask;

/// Right input, cut and put together, with noise in between.
fn torn(pieces: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let piece = (any::<Index>(), any::<Index>(), any::<Index>()).prop_map(move |(which, a, b)| {
        let piece = which.get(&pieces);
        let (a, b) = (a.index(piece.len() + 1), b.index(piece.len() + 1));
        piece[a.min(b)..a.max(b)].to_vec()
    });
    let noise = vec(any::<u8>(), 0..8);
    vec(prop_oneof![4 => piece, 1 => noise], 0..8).prop_map(|parts| parts.concat())
}

fn messages() -> Vec<Vec<u8>> {
    let mut long = ask("d", "user", "a");
    long.hits_addend = u32::MAX;
    for descriptor in &mut long.descriptors {
        descriptor.hits_addend = Some(u64::MAX);
        descriptor.is_negative_hits = true;
    }
    let empty = RateLimitRequest::default();
    [
        ask("d", "ip", "10.1.2.3"),
        ask("d", "path", "/x"),
        long,
        empty,
    ]
    .map(|message| message.encode_to_vec())
    .to_vec()
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

proptest! {
    #[test]
    fn the_decoder_of_requests(data in torn(messages())) {
        bodies::rls(&data);
    }

    #[test]
    fn rule_files(data in torn(texts(&[
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 3}\n",
        "- &a {key: a, value: 'regex:^(x|y)*$', limits: [{rate: 5/s, algorithm: token_bucket, burst: 9}]}\n",
        "concurrency: {limit: 5, lease: 10s}\n? [1, *a]\n: |2-\n  x\n",
        "answer: {headers: [ietf], body: problem_json}\n",
    ]))) {
        bodies::yaml(&data);
    }

    #[test]
    fn bodies_of_json(data in torn(texts(&[
        r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#,
        r#"{"hits_addend":4294967295,"descriptors":[{"limit":{"unit":"DAY"}}]}"#,
        r#"{"descriptors":[{"hitsAddend":"18446744073709551615","isNegativeHits":true}]}"#,
    ]))) {
        bodies::json(&data);
    }

    #[test]
    fn structured_fields(data in torn(texts(&[
        r#""default";q=100;w=60;pk=:Y2FsbGVy:"#, r#""a";r=5;t=30, "b";r=0"#, "?1;a=1.5",
    ]))) {
        bodies::fields(&data);
    }
}
