//! Explain, on the gRPC service, on `/explain` and on the command line.

use std::{collections::BTreeMap, process::Command, sync::Arc};

use axum::{Router, body::Body};
use porteiro::{
    api::{bounds::Bounds, explain, limiter::Limiter},
    model::time::Timestamp,
    proto::{
        envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
        porteiro::v1::{
            ExplainRequest, ExplainResponse, PeekRequest, PeekResponse,
            explained_descriptor::Charge, limiter_service_server::LimiterService,
        },
    },
};
use serde_json::{Value, json};
use tower_service::Service as _;

use crate::support::{REQUEST, Service, message, now, service};

/// 2023-11-14T22:20:00Z
const START: Timestamp = Timestamp::from_secs(1_700_000_400);

const RULES: &str = "
domain: edge
STACKING
descriptors:
- key: fixed
  limits: [{algorithm: fixed_window, rate: 10/min}]
- key: log
  limits: [{algorithm: sliding_log, rate: 10/min}]
- key: window
  limits: [{algorithm: sliding_window, rate: 10/min}]
- key: token
  limits: [{algorithm: token_bucket, rate: 10/min, burst: 10}]
- key: leaky
  limits: [{algorithm: leaky_bucket, rate: 10/min, burst: 10}]
- key: queue
  limits: [{algorithm: leaky_queue, rate: 10/min, burst: 10}]
- key: upstream
  concurrency: {limit: 3}
- key: free
  rate_limit: {unlimited: true}
- key: base
  rate_limit: {name: base, unit: minute, requests_per_unit: 5}
- key: better
  rate_limit: {unit: minute, requests_per_unit: 50, replaces: [{name: base}]}
- key: path
  descriptors:
  - {key: user, value: 'a*', rate_limit: {unit: day, requests_per_unit: 1}}
";

struct Stage {
    service: Service,
    limiter: Limiter,
    http: Router,
}

/// `independent` or `all_or_nothing`.
fn stage(stacking: &str) -> Stage {
    let text = RULES.replace("STACKING", &format!("stacking: {stacking}"));
    let files = BTreeMap::from([("edge.yaml".to_owned(), text)]);
    let service = service(&files, &BTreeMap::new(), START);
    let (engine, bounds) = (&service.engine, Bounds::default());
    Stage {
        limiter: Limiter::new(Arc::clone(engine), bounds),
        http: explain::router(Arc::clone(engine), bounds),
        service,
    }
}

fn question(pairs: &[(&str, &str)], hits: u32) -> Value {
    let one = |(key, value): &(&str, &str)| json!({"entries": [{"key": key, "value": value}]});
    let descriptors: Vec<Value> = pairs.iter().map(one).collect();
    json!({"domain": "edge", "descriptors": descriptors, "hitsAddend": hits})
}

impl Stage {
    fn take(&self, pairs: &[(&str, &str)], hits: u32) -> Code {
        let request: RateLimitRequest = message(REQUEST, &question(pairs, hits));
        self.service.ask(&request).unwrap().overall_code()
    }

    fn peek(&self, pairs: &[(&str, &str)], hits: u32) -> PeekResponse {
        let request: PeekRequest = message("porteiro.v1.PeekRequest", &question(pairs, hits));
        now(self.limiter.peek(tonic::Request::new(request)))
            .unwrap()
            .into_inner()
    }

    fn explain(&self, question: &Value) -> ExplainResponse {
        let request: ExplainRequest = message("porteiro.v1.ExplainRequest", question);
        now(self.limiter.explain(tonic::Request::new(request)))
            .unwrap()
            .into_inner()
    }

    fn get(&self, query: &str) -> (u16, String) {
        let request = http::Request::get(format!("/explain?{query}"))
            .body(Body::empty())
            .unwrap();
        let response = now(self.http.clone().call(request)).unwrap();
        let status = response.status().as_u16();
        let body = now(axum::body::to_bytes(response.into_body(), usize::MAX)).unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

const KINDS: [&str; 7] = [
    "fixed", "log", "window", "token", "leaky", "queue", "upstream",
];

/// Used and left of every limit, as Peek tells it.
fn standing(peek: &PeekResponse) -> Vec<(u64, u64)> {
    let limits = peek.descriptors.iter().flat_map(|d| &d.limits);
    limits.map(|limit| (limit.used, limit.remaining)).collect()
}

fn promised(explained: &ExplainResponse) -> Vec<(u64, u64)> {
    let charges = explained.descriptors.iter().flat_map(|d| &d.charges);
    charges
        .map(|charge| (charge.used_after, charge.remaining_after))
        .collect()
}

#[test]
fn what_is_promised_is_what_then_happens_and_asking_changes_nothing() {
    for stacking in ["independent", "all_or_nothing"] {
        let stage = stage(stacking);
        for kind in KINDS {
            // Alone, twice in one request, and beside a limit that refuses in the end.
            for pairs in [
                vec![(kind, "x")],
                vec![(kind, "y"), (kind, "y")],
                vec![(kind, "z"), ("base", "z")],
            ] {
                // Peek looks at each of these by itself, also where one request asks twice.
                if pairs == [("queue", "y"); 2] || pairs == [("upstream", "y"); 2] {
                    continue;
                }
                for hits in [1, 2, 1, 4, 7, 2] {
                    let before = stage.peek(&pairs, hits);
                    let explained = stage.explain(&question(&pairs, hits));
                    assert_eq!(explained.before.as_ref(), Some(&before));
                    assert_eq!(stage.peek(&pairs, hits), before, "asking changed something");
                    if kind == "upstream" && !before.would_pass {
                        // It would wait for a release that may be on its way.
                        continue;
                    }
                    let passed = stage.take(&pairs, hits) == Code::Ok;
                    let context = format!("{stacking} {pairs:?} {hits}");
                    assert_eq!(passed, before.would_pass, "{context}");
                    let after = standing(&stage.peek(&pairs, hits));
                    assert_eq!(promised(&explained), after, "{context}");
                }
            }
        }
    }
}

#[test]
fn the_way_through_the_rules_is_told() {
    let stage = stage("independent");
    let request = json!({"domain": "edge", "descriptors": [
        {"entries": [{"key": "path", "value": "/"}, {"key": "user", "value": "ann"}]},
        {"entries": [{"key": "path", "value": "/"}, {"key": "user", "value": "bob"}]},
        {"entries": [{"key": "path", "value": "/"}]},
        {"entries": [{"key": "free", "value": "1"}]},
        {"entries": [{"key": "base", "value": "1"}]},
        {"entries": [{"key": "better", "value": "1"}]},
        {"entries": [{"key": "log", "value": "1"}], "limit": {"requestsPerUnit": 9, "unit": "HOUR"}},
    ]});
    let explained = stage.explain(&request);
    assert!(explained.domain_known);
    assert_eq!(explained.stacking, "independent");
    assert_eq!(explained.revision.len(), 16);
    let ends: Vec<(&str, &str)> = explained
        .descriptors
        .iter()
        .map(|descriptor| (descriptor.rule.as_str(), descriptor.end.as_str()))
        .collect();
    assert_eq!(
        ends,
        [
            ("edge.path.user_a*", "at a rule"),
            ("", "nothing matches entry 2"),
            (
                "",
                "every entry matched, but there is no limit at that depth"
            ),
            ("edge.free", "at a rule without limit"),
            (
                "edge.base",
                "at a rule whose limits another rule of the request replaces"
            ),
            ("edge.better", "at a rule"),
            ("edge.log", "at a rule; the request brought a limit along"),
        ]
    );
    let [_, user] = &explained.descriptors[1].levels[..] else {
        panic!("{explained:?}")
    };
    assert_eq!((user.key.as_str(), user.value.as_str()), ("user", "bob"));
    let [tried] = &user.tried[..] else {
        panic!("{user:?}")
    };
    assert_eq!(
        (tried.value.as_str(), tried.chosen, tried.why.as_str()),
        ("a*", false, "its pattern does not match")
    );
    assert_eq!(
        explained.descriptors[6].charges,
        [Charge {
            cost: 1,
            charged: true,
            used_after: 1,
            remaining_after: 8
        }]
    );
}

#[test]
fn an_unknown_domain_is_explained_too() {
    let stage = stage("independent");
    let request = json!({"domain": "else", "descriptors": [
        {"entries": [{"key": "path", "value": "/"}]},
    ]});
    let explained = stage.explain(&request);
    assert!(!explained.domain_known);
    assert!(explained.before.unwrap().would_pass);
    assert_eq!(
        explained.descriptors[0].end,
        "there are no rules for this domain"
    );
}

#[test]
fn the_endpoint_tells_the_same_as_json() {
    let stage = stage("all_or_nothing");
    stage.take(&[("base", "x")], 5);
    let (status, body) = stage.get("domain=edge&descriptor=fixed=x&descriptor=base=x&cost=2");
    assert_eq!(status, 200, "{body}");
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shown["would_pass"], false);
    assert_eq!(shown["reason"], "rate");
    assert_eq!(shown["binding"], json!({"descriptor": 1, "limit": 0}));
    assert_eq!(shown["revision"].as_str().unwrap().len(), 16);
    let fixed = &shown["descriptors"][0];
    assert_eq!(fixed["rule"], "edge.fixed");
    assert_eq!(
        (&fixed["file"], &fixed["line"]),
        (&json!("edge.yaml"), &json!(5))
    );
    assert_eq!(
        fixed["levels"][0]["tried"][0],
        json!({"key": "fixed", "value": "", "chosen": true, "why": "chosen: any value of this key"})
    );
    // The request falls as a whole.
    assert_eq!(
        fixed["limits"][0]["charge"],
        json!({"cost": 2, "charged": false, "used_after": 0, "remaining_after": 10})
    );
    assert_eq!(fixed["limits"][0]["remaining"], 10);

    for (query, status, text) in [
        ("domain=edge&descriptor=fixed", 400, "no key=value"),
        ("domain=edge&descriptor=a=b&leases=3", 400, "no parameter"),
        ("domain=edge", 400, "descriptor"),
        ("descriptor=a=b", 400, "domain"),
    ] {
        let (got, body) = stage.get(query);
        assert_eq!(got, status, "{query}: {body}");
        assert!(body.contains(text), "{query}: {body}");
    }
}

fn program(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_porteiro"))
        .arg("explain")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_command_line_tells_the_same_as_text() {
    let (code, text, _) = program(&[
        "--config",
        "deploy/envoy/rules.yaml",
        "--domain",
        "edge",
        "--descriptor",
        "route=login,remote_address=10.0.0.1",
        "--descriptor",
        "tenant=acme,path=/",
        "--cost",
        "4",
    ]);
    assert_eq!(code, Some(0), "{text}");
    let (head, rest) = text.split_once(", rules of revision ").unwrap();
    assert_eq!(head, "domain edge, stacking independent");
    let (revision, rest) = rest.split_once('\n').unwrap();
    assert_eq!(revision.len(), 16);
    assert_eq!(rest, include_str!("../data/explain.txt"));
    let (code, _, wrong) = program(&[
        "--config",
        "deploy/envoy/rules.yaml",
        "--domain",
        "edge",
        "--descriptor",
        "a",
    ]);
    assert_eq!(code, Some(64));
    assert!(wrong.contains("`a` is no key=value"), "{wrong}");
}
