//! Secrets never print: not in the log at its loudest, not on any page, not in errors or help.

use std::{fs, net::SocketAddr};

use crate::{
    process::{self, File, Serving},
    serving,
};

const RULES: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: day, requests_per_unit: 1}}
";

/// What each secret begins with.
const SECRET: &str = "hush-hush-7f3a";

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_secrets_prints_none() {
    let file = File::new("secrets", RULES);
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("{SECRET}-{name}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (admin, privileged) = (secret("admin"), secret("privileged"));
    let names = secret("store-names");
    let store = format!("redis://user:{SECRET}-password@127.0.0.1:1");
    let headers = format!("authorization={SECRET}-collector");
    let sentinel = format!("{SECRET}-sentinel");
    let args = [
        "--config",
        file.path(),
        "--log-level",
        "trace",
        "--log-refusals",
        "1/1",
        "--store",
        &store,
        "--store-secret-file",
        &names,
        "--admin-token-file",
        &admin,
        "--restrict",
        "refunds,resets,overrides",
        "--privileged-token-file",
        &privileged,
        "--otlp",
        "http://127.0.0.1:1",
    ];
    let environment = [
        ("OTEL_EXPORTER_OTLP_HEADERS", headers.as_str()),
        ("REDIS_SENTINEL_AUTH", sentinel.as_str()),
    ];
    let mut porteiro = Serving::listening(&args, &environment);
    let mut shown = porteiro.line_with("rules loaded");
    let http: SocketAddr = porteiro.http.parse().unwrap();
    let admin: SocketAddr = porteiro.admin.parse().unwrap();
    let stop = porteiro.read_on();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]}]}"#;
    for _ in 0..3 {
        shown += &serving::http(http, "POST", "/json", body).await.2;
    }
    let (status, _, refused) = serving::http(admin, "GET", "/rules", "").await;
    assert_eq!(status, 401);
    shown += &refused;
    let token = format!("authorization: Bearer {SECRET}-admin\r\n");
    for path in [
        "/",
        "/rules",
        "/metrics",
        "/readyz",
        "/log-level",
        "/log-refusals",
        "/top?domain=d",
        "/counters?domain=d&descriptor=k=a",
        "/explain?domain=d&descriptor=k=a",
        "/explain?domain=d&wrong=1",
        "/nothing",
    ] {
        let (status, _, answer) = serving::http_with(admin, "GET", path, &token, "").await;
        assert_ne!(status, 401, "{path}");
        shown += &answer;
    }
    let (code, log) = stop();
    assert_eq!(code, Some(0));
    assert!(
        log.contains("TRACE") && log.contains("the shared store is away"),
        "{log}"
    );
    shown += &log;
    let lines = shown.lines().filter(|line| line.contains(SECRET));
    assert_eq!(lines.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn what_is_wrong_is_said_without_secrets() {
    let password = format!("{SECRET}-password");
    let with_password = |url: &str| url.replace("PASSWORD", &password);
    for (args, environment) in [
        (vec!["--store", "redis://user:PASSWORD@"], vec![]),
        (vec!["--store", "http://user:PASSWORD@host:1"], vec![]),
        (vec!["--store", "redis://:PASSWORD@host:99999"], vec![]),
        (vec!["--store", "redis+cluster://:PASSWORD@"], vec![]),
        (
            vec!["--workers", "x"],
            vec![("REDIS_URL", "redis://:PASSWORD@host:x")],
        ),
        (
            vec!["--workers", "x"],
            vec![("REDIS_URL", "host:1"), ("REDIS_AUTH", "PASSWORD\u{1}")],
        ),
        (vec!["--otlp", "ftp://user:PASSWORD@host"], vec![]),
        (vec!["--xds-headers", "authorization PASSWORD"], vec![]),
        (vec!["--help"], vec![("REDIS_AUTH", "PASSWORD")]),
        (
            vec!["--help"],
            vec![("PORTEIRO_STORE", "redis://:PASSWORD@host:1")],
        ),
    ] {
        let args: Vec<String> = args.into_iter().map(with_password).collect();
        let mut program = process::program();
        program.arg("serve").args(&args);
        for (name, value) in environment {
            program.env(name, with_password(value));
        }
        let output = program.output().unwrap();
        let mut text = String::from_utf8(output.stdout).unwrap();
        text += &String::from_utf8(output.stderr).unwrap();
        assert!(
            !text.is_empty() && !text.contains(SECRET),
            "{args:?}: {text}"
        );
    }
}
