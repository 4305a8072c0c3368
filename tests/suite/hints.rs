//! Hints through the service: whoever waits as long as it was told passes, one tick less does not.

use std::{collections::BTreeMap, sync::Arc};

use porteiro::{
    api::{bounds::Bounds, limiter::Limiter},
    model::time::{Span, Timestamp},
    proto::{
        envoy::service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        },
        porteiro::v1::{PeekRequest, PeekResponse, Reason, limiter_service_server::LimiterService},
    },
};
use serde_json::json;

use crate::support::{REQUEST, Service, message, now, service};

/// 2023-11-14T22:20:00Z
const START: Timestamp = Timestamp::from_secs(1_700_000_400);
const TICK: Span = Span::from_nanos(1);

/// Every way to count, with odd numbers.
const ALGORITHMS: [&str; 11] = [
    "{rate: 7/10s}",
    "{rate: 7/10s, count_denied: false}",
    "{rate: 7/10s, anchor: first_hit}",
    "{rate: 7/10s, anchor: last_hit}",
    "{rate: 7/minute, anchor: calendar, time_zone: Asia/Kolkata}",
    "{rate: 7/10s, algorithm: sliding_log}",
    "{rate: 7/10s, algorithm: sliding_window}",
    "{rate: 3/10s, algorithm: token_bucket, burst: 7}",
    "{rate: 7/s, algorithm: leaky_bucket, burst: 3}",
    "{rate: 3/7s, algorithm: leaky_queue, burst: 5}",
    "{rate: 7/300ms, algorithm: sliding_window}",
];

struct Stage {
    service: Service,
    limiter: Limiter,
}

impl Stage {
    fn new(stacking: &str, limits: &[&str]) -> Self {
        let rules: Vec<String> = limits
            .iter()
            .enumerate()
            .map(|(n, limit)| format!("- {{key: k{n}, limits: [{limit}]}}"))
            .collect();
        let text = format!(
            "domain: edge\nstacking: {stacking}\n\
             answer: {{headers: [retry_after, retry_after_ms], metadata: true}}\n\
             descriptors:\n{}\n",
            rules.join("\n")
        );
        let files = BTreeMap::from([("edge.yaml".to_owned(), text)]);
        let service = service(&files, &BTreeMap::new(), START);
        let limiter = Limiter::new(Arc::clone(&service.engine), Bounds::default());
        Self { service, limiter }
    }

    fn ask(&self, request: &RateLimitRequest) -> RateLimitResponse {
        self.service.ask(request).unwrap()
    }

    fn peek(&self, request: &RateLimitRequest) -> PeekResponse {
        let request = PeekRequest {
            domain: request.domain.clone(),
            descriptors: request.descriptors.clone(),
            hits_addend: request.hits_addend,
            ..PeekRequest::default()
        };
        now(self.limiter.peek(tonic::Request::new(request)))
            .unwrap()
            .into_inner()
    }

    fn advance(&self, span: Span) {
        self.service.clock.advance(span);
    }
}

fn asking(limits: usize, cost: u32) -> RateLimitRequest {
    let descriptors: Vec<_> = (0..limits)
        .map(|n| json!({"entries": [{"key": format!("k{n}"), "value": "x"}]}))
        .collect();
    let request = json!({"domain": "edge", "descriptors": descriptors, "hits_addend": cost});
    message(REQUEST, &request)
}

fn header(answer: &RateLimitResponse, name: &str) -> Option<u64> {
    let headers = answer.response_headers_to_add.iter();
    let mut values = headers.filter(|h| h.key == name).map(|h| h.value.parse());
    values.next().map(Result::unwrap)
}

fn told(peek: &PeekResponse) -> Option<Span> {
    let wait = peek.retry_after?;
    let seconds = Span::from_secs(u64::try_from(wait.seconds).unwrap());
    Some(seconds.saturating_add(Span::from_nanos(u64::try_from(wait.nanos).unwrap())))
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A random history; at each refusal the hint is put to the test.
fn check_hints(stacking: &str, limits: &[&str], seed: u64) {
    let stage = Stage::new(stacking, limits);
    let mut random = Random(seed);
    let mut tested = 0;
    for _ in 0..120 {
        let longest = [3_000_000_000, 50_000_000][usize::try_from(random.below(2)).unwrap()];
        stage.advance(Span::from_nanos(random.below(longest)));
        let request = asking(limits.len(), u32::try_from(1 + random.below(4)).unwrap());
        let context = format!("{stacking} {limits:?} cost {}", request.hits_addend);
        let answer = stage.ask(&request);
        if answer.overall_code() == Code::Ok {
            assert_eq!(header(&answer, "Retry-After"), None, "{context}");
            continue;
        }
        let peek = stage.peek(&request);
        assert!(!peek.would_pass, "{context}");
        let Some(wait) = told(&peek) else {
            assert_eq!(peek.reason(), Reason::Never, "{context}");
            assert_eq!(header(&answer, "Retry-After"), None, "{context}");
            continue;
        };
        // The headers say the same, rounded up.
        assert_eq!(
            header(&answer, "Retry-After"),
            Some(wait.as_secs_up().max(1)),
            "{context}"
        );
        assert_eq!(
            header(&answer, "Retry-After-Ms"),
            Some(wait.as_millis_up().max(1)),
            "{context}"
        );
        stage.advance(wait.saturating_sub(TICK));
        assert!(
            !stage.peek(&request).would_pass,
            "{context}: one tick early is enough"
        );
        if random.below(4) == 0 {
            // Whole seconds, as a client of HTTP waits.
            let seconds = Span::from_secs(wait.as_secs_up().max(1));
            stage.advance(seconds.saturating_sub(wait.saturating_sub(TICK)));
        } else {
            stage.advance(TICK);
        }
        let again = stage.ask(&request);
        assert_eq!(
            again.overall_code(),
            Code::Ok,
            "{context}: waiting was not enough"
        );
        tested += 1;
    }
    assert!(tested > 5, "{stacking} {limits:?}: {tested} refusals");
}

#[test]
fn hints_of_every_algorithm_are_true_to_the_tick() {
    for stacking in ["independent", "all_or_nothing"] {
        for (seed, limit) in (1..).zip(ALGORITHMS) {
            check_hints(stacking, &[limit], seed);
        }
    }
}

#[test]
fn hints_of_stacked_limits_are_true_to_the_tick() {
    for stacking in ["independent", "all_or_nothing"] {
        for (seed, first) in (100..).zip(ALGORITHMS) {
            for second in ALGORITHMS.iter().step_by(3) {
                check_hints(stacking, &[first, second], seed);
            }
        }
    }
}

#[test]
fn what_can_never_pass_is_not_waited_for() {
    for stacking in ["independent", "all_or_nothing"] {
        for limit in ALGORITHMS {
            let stage = Stage::new(stacking, &[limit]);
            let request = asking(1, 8);
            let refused = stage.ask(&request);
            assert_eq!(refused.overall_code(), Code::OverLimit);
            assert_eq!(header(&refused, "Retry-After"), None);
            let peek = stage.peek(&request);
            assert_eq!((peek.retry_after, peek.reason()), (None, Reason::Never));
            stage.advance(Span::from_secs(1_000_000));
            assert!(!stage.peek(&request).would_pass);
        }
    }
}

#[test]
fn the_metadata_of_a_refusal_has_the_hint_as_well() {
    let stage = Stage::new("independent", &["{rate: 1/s, algorithm: token_bucket}"]);
    stage.ask(&asking(1, 1));
    stage.advance(Span::from_millis(250));
    let refused = stage.ask(&asking(1, 1));
    let fields = refused.dynamic_metadata.unwrap().fields;
    let retry_after = fields["retry_after"].kind.clone().unwrap();
    assert_eq!(retry_after, prost_types::value::Kind::NumberValue(0.75));
}
