//! Flag before variable before the reference's variable before default; everything that is wrong
//! at once.

use std::time::Duration;

use super::*;
use crate::store::{self, redis::Target};

fn read(args: &[&str], variables: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
    let command = flags(Command::new("serve").no_binary_name(true));
    let matches = command.try_get_matches_from(args).unwrap();
    let environment = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Settings::read(&matches, &environment)
}

fn good(args: &[&str], variables: &[(&str, &str)]) -> Settings {
    read(args, variables).unwrap()
}

fn grpc_of(args: &[&str], variables: &[(&str, &str)]) -> String {
    good(args, variables).grpc.to_string()
}

#[test]
fn nothing_given_is_the_quickstart_on_the_usual_ports() {
    let settings = good(&[], &[]);
    assert_eq!(settings.config, None);
    assert_eq!(settings.grpc.to_string(), "0.0.0.0:8081");
    assert_eq!(settings.http.to_string(), "0.0.0.0:8080");
    assert_eq!(settings.admin.to_string(), "127.0.0.1:6070");
    assert_eq!(settings.metrics, None);
    assert_eq!(settings.server, Options::default());
    assert_eq!(settings.watch, Watch::default());
    assert!(settings.workers >= 1);
    assert!(settings.warnings.is_empty());
    assert!(!settings.noop);
}

#[test]
fn a_flag_wins_over_its_variable_and_both_over_the_references() {
    let ours = ("PORTEIRO_GRPC", "10.0.0.1:2");
    let theirs = [("GRPC_HOST", "10.0.0.2"), ("GRPC_PORT", "3")];
    assert_eq!(grpc_of(&[], &theirs), "10.0.0.2:3");
    assert_eq!(grpc_of(&[], &[theirs[1]]), "0.0.0.0:3");
    assert_eq!(grpc_of(&[], &[ours, theirs[0], theirs[1]]), "10.0.0.1:2");
    assert_eq!(grpc_of(&["--grpc", ":1"], &[ours, theirs[0]]), ":1");
    assert_eq!(
        grpc_of(&[], &[("GRPC_UDS", "/run/x"), theirs[1]]),
        "unix:/run/x"
    );
    assert_eq!(grpc_of(&[], &[("GRPC_HOST", "::")]), "[::]:8081");
    // Empty is absent.
    assert_eq!(
        grpc_of(&[], &[("PORTEIRO_GRPC", ""), theirs[1]]),
        "0.0.0.0:3"
    );
}

#[test]
fn every_setting_has_a_variable_that_is_read() {
    for knob in KNOBS {
        let variable = knob.variable();
        let result = read(&[], &[(&variable, "\u{1}")]);
        // Any text is a path.
        if matches!(knob.name, "config" | "state") {
            assert!(result.is_ok());
            continue;
        }
        let problems = result.expect_err(&variable);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(&variable), "{problems:?}");
    }
}

#[test]
fn every_variable_of_the_reference_is_read_or_known_to_be_unsupported() {
    for knob in KNOBS {
        for variable in knob.reference {
            assert!(!knobs::UNSUPPORTED.contains(variable), "{variable}");
            if variable.starts_with("RUNTIME_") || *variable == "GRPC_UDS" {
                continue;
            }
            // Only asked for when metrics are wanted.
            let on = ("USE_PROMETHEUS", "true");
            let result = match *variable {
                "USE_PROMETHEUS" => read(&[], &[("USE_PROMETHEUS", "\u{1}")]),
                "GRPC_SERVER_USE_TLS" => read(&[], &[(variable, "\u{1}")]),
                // Only asked for when TLS is wanted.
                variable if variable.contains("_TLS_") && variable.starts_with("GRPC_") => read(
                    &[],
                    &[("GRPC_SERVER_USE_TLS", "true"), (variable, "\u{1} ")],
                ),
                variable => read(&[], &[on, (variable, "\u{1} ")]),
            };
            let problems = result.expect_err(variable);
            assert!(problems[0].contains(variable), "{problems:?}");
        }
    }
}

#[test]
fn a_shared_store_may_be_named_in_the_ways_of_the_reference() {
    let target = |variables: &[(&str, &str)]| {
        let shared = good(&[], variables).shared.expect("a shared store");
        (shared.redis.target, shared.redis.tls.is_some())
    };
    let tcp = |host: &str, port| store::redis::Address::Tcp(host.to_owned(), port);
    assert_eq!(
        target(&[
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", "a:1"),
            ("REDIS_TLS", "true")
        ]),
        (Target::Single(tcp("a", 1)), true)
    );
    let path = store::redis::Address::Unix("/run/r.sock".into());
    assert_eq!(
        target(&[("REDIS_URL", "/run/r.sock")]),
        (Target::Single(path), false)
    );
    assert_eq!(
        target(&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main,a:1,b:2")]),
        (
            Target::Sentinel {
                sentinels: vec![tcp("a", 1), tcp("b", 2)],
                primary: "main".to_owned()
            },
            false
        )
    );
    assert_eq!(
        target(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2")]),
        (Target::Cluster(vec![tcp("a", 1), tcp("b", 2)]), false)
    );
    // Ours wins.
    let ours = [("PORTEIRO_STORE", "memory"), ("REDIS_URL", "a:1")];
    assert!(good(&[], &ours).shared.is_none());
}

#[test]
fn a_password_is_never_said() {
    for variable in ["PORTEIRO_STORE", "REDIS_URL"] {
        let problems = read(&[], &[(variable, "redis://:hunter2@a:port")]).expect_err(variable);
        assert!(problems[0].contains(variable), "{problems:?}");
        assert!(!problems[0].contains("hunter2"), "{problems:?}");
    }
}

#[test]
fn admin_beyond_loopback_wants_a_guard() {
    let problems = read(&["--admin", "0.0.0.0:6070"], &[]).unwrap_err();
    assert!(problems[0].contains("--admin-token-file"), "{problems:?}");
    for local in ["127.0.0.2:1", "[::1]:1", "localhost:1", "unix:/run/a.sock"] {
        assert_eq!(good(&["--admin", local], &[]).admin.to_string(), local);
    }
    // A deployment of the reference starts, but closed.
    let theirs = good(&[], &[("DEBUG_HOST", "0.0.0.0"), ("DEBUG_PORT", "7")]);
    assert_eq!(theirs.admin.to_string(), "127.0.0.1:7");
    assert!(
        theirs.warnings[0].contains("DEBUG_HOST"),
        "{:?}",
        theirs.warnings
    );
    let file = token_file("a-token-of-the-tests");
    let guarded = good(&["--admin", ":1", "--admin-token-file", path(&file)], &[]);
    assert_eq!(guarded.admin.to_string(), ":1");
    // A token is never shown, and a short one is none.
    assert!(!format!("{guarded:?}").contains("a-token-of-the-tests"));
    let short = token_file("short");
    let problems = read(&["--admin-token-file", path(&short)], &[]).unwrap_err();
    assert!(problems[0].contains("at least 16"), "{problems:?}");
}

#[test]
fn names_of_privileged_clients_want_certificates() {
    let args = [
        "--restrict",
        "refunds,overrides",
        "--privileged-san",
        "A.test",
    ];
    assert!(read(&args, &[]).unwrap_err()[0].contains("--tls-client-ca"));
    let file = token_file("a-token-of-the-tests");
    let privileges = good(
        &[
            "--restrict",
            "resets",
            "--privileged-token-file",
            path(&file),
        ],
        &[],
    )
    .privileges;
    assert!(privileges.resets && !privileges.refunds && !privileges.overrides);
    assert!(!format!("{privileges:?}").contains("a-token-of-the-tests"));
}

fn token_file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[test]
fn the_variables_that_envoy_gateway_sets_work() {
    let settings = good(
        &[],
        &[
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("LOG_LEVEL", "info"),
            ("USE_STATSD", "false"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("GRPC_SERVER_USE_TLS", "false"),
            ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("REDIS_URL", "redis:6379"),
            ("REDIS_TLS", "false"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", ":19001"),
            ("GRPC_MAX_CONNECTION_AGE", "24h"),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "1h30m"),
        ],
    );
    assert_eq!(settings.config, None, "rules come from the gateway");
    let xds = settings.xds.expect("a control plane");
    assert_eq!(xds.server, "envoy-gateway:18001");
    assert_eq!(xds.node_id, "envoy-ratelimit");
    assert!(settings.server.start_without_rules);
    let metrics = settings.metrics.map(|at| at.to_string());
    assert_eq!(metrics.as_deref(), Some(":19001"));
    let transport = settings.server.transport;
    assert_eq!(transport.max_age, Some(Duration::from_hours(24)));
    assert_eq!(transport.max_age_grace, Duration::from_mins(90));
    // What asks for something that is not here is named once, what asks for nothing is not.
    assert_eq!(
        settings.warnings,
        ["set, but not supported and without effect: GRPC_SERVER_TLS_CA_CERT"]
    );
    let shared = settings.shared.map(|shared| shared.redis.target);
    let redis = Target::Single(store::redis::Address::Tcp("redis".to_owned(), 6379));
    assert_eq!(shared, Some(redis));
}

#[test]
fn the_path_of_the_reference_has_three_parts() {
    let path = |variables| good(&[], variables).config.unwrap();
    assert_eq!(
        path(&[("RUNTIME_SUBDIRECTORY", "rl")]),
        PathBuf::from("/srv/runtime_data/current/rl/config")
    );
    assert_eq!(
        path(&[("RUNTIME_ROOT", "/d/"), ("RUNTIME_APPDIRECTORY", "/app")]),
        PathBuf::from("/d/app")
    );
    let both = [("RUNTIME_ROOT", "/d"), ("PORTEIRO_CONFIG", "/ours")];
    assert_eq!(path(&both), PathBuf::from("/ours"));
}

#[test]
fn switches_need_no_value_and_may_have_one() {
    assert!(good(&["--shadow-mode"], &[]).engine.shadow_mode);
    assert!(
        !good(&["--shadow-mode=false"], &[("SHADOW_MODE", "true")])
            .engine
            .shadow_mode
    );
    assert!(good(&[], &[("SHADOW_MODE", "1")]).engine.shadow_mode);
    let headers = good(&["--limit-headers", "--limit-header", "X-L"], &[])
        .answers
        .headers;
    assert_eq!(headers.map(|names| names.limit), Some("X-L".to_owned()));
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let args = ["--drain-delay", "30", "--max-message", "lots"];
    let variables = [
        ("PORTEIRO_WORKERS", "0"),
        ("PORT", "99999"),
        ("LOG_LEVEL", "loud"),
    ];
    let problems = read(&args, &variables).unwrap_err();
    assert_eq!(problems.len(), 5, "{problems:#?}");
    for name in [
        "--drain-delay=\"30\"",
        "--max-message",
        "PORTEIRO_WORKERS",
        "PORT=",
        "LOG_LEVEL",
    ] {
        assert!(
            problems.iter().any(|p| p.starts_with(name)),
            "{problems:#?}"
        );
    }
}

#[test]
fn a_misspelt_variable_is_pointed_out_and_kubernetes_is_not() {
    let warnings = |name| good(&[], &[(name, "x")]).warnings;
    let one = warnings("PORTEIRO_DRAIN_DEALY");
    assert!(one[0].contains("PORTEIRO_DRAIN_DELAY"), "{one:?}");
    for name in [
        "PORTEIRO_SERVICE_HOST",
        "PORTEIRO_PORT_8081_TCP",
        "PORTEIRO_PORT",
    ] {
        assert!(warnings(name).is_empty(), "{name}");
    }
}

#[test]
fn the_empty_decision_is_served_when_asked_for() {
    assert!(good(&["--noop"], &[]).noop);
}
