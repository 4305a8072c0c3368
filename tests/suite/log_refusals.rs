//! Log lines of refusals, on request.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use porteiro::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use serde_json::Value;

use crate::{
    process::{File, Serving},
    serving,
};

const RULES: &str = "
domain: d
descriptors:
- {key: open, detailed_metric: true, rate_limit: {name: daily, unit: day, requests_per_unit: 1}}
- {key: closed, rate_limit: {unit: day, requests_per_unit: 1}}
";

async fn ask(porteiro: &Serving, key: &str, value: &str) -> u16 {
    let body = format!(
        r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]}}"#
    );
    let at: SocketAddr = porteiro.http.parse().unwrap();
    serving::http(at, "POST", "/json", &body).await.0
}

async fn put(porteiro: &Serving, wanted: &str) -> (u16, String) {
    let at: SocketAddr = porteiro.admin.parse().unwrap();
    let (status, _, body) = serving::http(at, "PUT", "/log-refusals", wanted).await;
    (status, body)
}

/// The rest of the log, and what it says of refusals.
fn refusals(porteiro: Serving) -> (String, Vec<String>) {
    porteiro.signal("-TERM");
    let (_, log) = porteiro.end();
    let lines = log.lines().filter(|line| line.contains("refused"));
    let lines = lines.map(str::to_owned).collect();
    (log, lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_logged_with_names_only_where_statistics_have_them() {
    let file = File::new("log-refusals-json", RULES);
    let args = [
        "--config",
        file.path(),
        "--log-refusals",
        "1/1",
        "--log-format",
        "json",
    ];
    let mut porteiro = Serving::spawned(&args, &[]);
    let listening: Value = serde_json::from_str(&porteiro.line_with("\"listening\"")).unwrap();
    listening["http"]
        .as_str()
        .unwrap()
        .clone_into(&mut porteiro.http);
    porteiro.line_with("rules loaded");
    for value in ["ann@example", "ann@example"] {
        ask(&porteiro, "open", value).await;
        ask(&porteiro, "closed", value).await;
    }
    let (log, lines) = refusals(porteiro);
    let [open, closed] = &lines[..] else {
        panic!("{log}")
    };
    let open: Value = serde_json::from_str(open).unwrap();
    assert_eq!(open["@message"], "refused");
    assert_eq!(
        (&open["domain"], &open["limit"]),
        (&"d".into(), &"d.open/daily".into())
    );
    assert_eq!(
        (&open["reason"], &open["caller"]),
        (&"rate".into(), &"open=ann@example".into())
    );
    assert!(open["retry_after"].as_f64().unwrap() > 0.0, "{open}");
    assert_eq!(open["more"], 0);
    assert!(!closed.contains("example"), "{closed}");
    let closed: Value = serde_json::from_str(closed).unwrap();
    assert_eq!(closed["caller"].as_str().unwrap().len(), 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn how_many_are_logged_can_be_changed() {
    let file = File::new("log-refusals-text", RULES);
    let mut porteiro = Serving::listening(&["--config", file.path()], &[]);
    porteiro.line_with("rules loaded");
    for _ in 0..5 {
        ask(&porteiro, "open", "a\\nb").await;
    }
    assert_eq!(put(&porteiro, "2/100").await.0, 400);
    assert_eq!(put(&porteiro, "1/4\n").await, (200, "1/4\n".to_owned()));
    for _ in 0..5 {
        assert_eq!(ask(&porteiro, "open", "a\\nb").await, 429);
    }
    let (log, lines) = refusals(porteiro);
    let [first, second] = &lines[..] else {
        panic!("{log}")
    };
    // A line break of a caller begins no line.
    for (line, more) in [(first, "more=0"), (second, "more=3")] {
        assert!(line.contains(r#"caller="open=a\nb""#), "{line}");
        assert!(
            line.contains(r#"limit="d.open/daily""#) && line.contains(more),
            "{line}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_holds_up_no_call() {
    const CALLS: usize = 10_000;
    const AT_ONCE: usize = 100;
    // Lines of 3 KB: a thousand of them, which one second may have, are more than find room.
    let keys = ["a", "b", "c"].map(|key| key.repeat(1_000));
    let mut rules = "domain: d\ndescriptors:\n".to_owned();
    for (level, key) in keys.iter().enumerate() {
        let indent = "  ".repeat(level);
        writeln!(rules, "{indent}- key: {key}").unwrap();
        let inside = if level == 2 {
            "rate_limit: {unit: day, requests_per_unit: 1}"
        } else {
            "descriptors:"
        };
        writeln!(rules, "{indent}  {inside}").unwrap();
    }
    let file = File::new("log-refusals-stuck", &rules);
    let args = ["--config", file.path(), "--log-refusals", "1/1"];
    let mut porteiro = Serving::listening(&args, &[]);
    porteiro.line_with("rules loaded");
    // From here on nobody reads, and a pipe takes a few hundred lines.
    let client = RateLimitServiceClient::connect(format!("http://{}", porteiro.grpc));
    let client = client.await.unwrap();
    let request = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: keys
                .map(|key| Entry {
                    key,
                    value: "x".to_owned(),
                })
                .into(),
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 2,
    };
    let callers = (0..AT_ONCE).map(|_| {
        let (mut client, request) = (client.clone(), request.clone());
        tokio::spawn(async move {
            for _ in 0..CALLS / AT_ONCE {
                let answer = client.should_rate_limit(request.clone()).await.unwrap();
                assert_eq!(answer.into_inner().overall_code(), Code::OverLimit);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let all = async {
        for caller in callers {
            caller.await.unwrap();
        }
    };
    let held_up = "the log holds up calls";
    let patience = Duration::from_secs(100);
    tokio::time::timeout(patience, all).await.expect(held_up);
    let admin: SocketAddr = porteiro.admin.parse().unwrap();
    let (_, _, page) = serving::http(admin, "GET", "/metrics", "").await;
    let lost = page
        .lines()
        .find_map(|line| line.strip_prefix("porteiro_log_lines_dropped_total "));
    let lost: usize = lost.unwrap().parse().unwrap();
    assert!((1..CALLS).contains(&lost), "{lost}");
    // Whoever reads again has what was kept, and is told what is missing.
    let told = porteiro.line_with("log lines were lost");
    assert!(told.contains(&format!("lines={lost}")), "{lost}: {told}");
    porteiro.signal("-TERM");
    let (code, log) = porteiro.end();
    assert_eq!(code, Some(0));
    assert!(log.contains("every connection was finished"), "{log}");
}
