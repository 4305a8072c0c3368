//! The table of all settings of `porteiro serve`: flag, environment twin, the reference's
//! variables, default, meaning.

use std::iter;

use clap::{Arg, ArgAction};

/// One setting. Its flag is `--NAME`, its variable `PORTEIRO_NAME`.
pub(super) struct Knob {
    pub(super) name: &'static str,
    /// What stands for the value in help; empty for a switch (`--NAME` alone means true).
    pub(super) value: &'static str,
    /// For help; the value itself is where the setting is used.
    pub(super) default: &'static str,
    /// Variables of the reference that mean the same.
    pub(super) reference: &'static [&'static str],
    pub(super) help: &'static str,
}

impl Knob {
    /// The environment twin.
    pub(super) fn variable(&self) -> String {
        format!("PORTEIRO_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// The flag.
    pub(super) fn arg(&self) -> Arg {
        let default = match self.default {
            "" => String::new(),
            default => format!(" [default: {default}]"),
        };
        let variables: Vec<String> = iter::once(self.variable())
            .chain(self.reference.iter().map(ToString::to_string))
            .collect();
        let help = format!("{}{default} [env: {}]", self.help, variables.join(", "));
        let arg = Arg::new(self.name)
            .long(self.name)
            .help(help)
            .action(ArgAction::Set)
            .allow_hyphen_values(true);
        if self.value.is_empty() {
            arg.value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
        } else {
            arg.value_name(self.value)
        }
    }
}

const fn knob(
    name: &'static str,
    value: &'static str,
    default: &'static str,
    reference: &'static [&'static str],
    help: &'static str,
) -> Knob {
    Knob {
        name,
        value,
        default,
        reference,
        help,
    }
}

/// Every setting, in the order of the help.
pub(super) const KNOBS: &[Knob] = &[
    knob(
        "config",
        "PATH",
        "",
        &[
            "RUNTIME_ROOT",
            "RUNTIME_SUBDIRECTORY",
            "RUNTIME_APPDIRECTORY",
        ],
        "Rule file, or directory of rule files. Without one: a built-in quickstart",
    ),
    knob(
        "xds-server",
        "ADDR",
        "",
        &["CONFIG_TYPE", "CONFIG_GRPC_XDS_SERVER_URL"],
        "Control plane that rules come from instead of files: HOST:PORT, asked over ADS for \
         ratelimit.config.ratelimit.v3.RateLimitConfig",
    ),
    knob(
        "xds-node-id",
        "TEXT",
        "default",
        &["CONFIG_GRPC_XDS_NODE_ID"],
        "Who we are to the control plane",
    ),
    knob(
        "xds-node-metadata",
        "PAIRS",
        "",
        &["CONFIG_GRPC_XDS_NODE_METADATA"],
        "More about us: NAME=VALUE,…",
    ),
    knob(
        "xds-headers",
        "PAIRS",
        "",
        &["CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"],
        "Headers that the control plane wants to see: NAME:VALUE,…",
    ),
    knob(
        "xds-tls",
        "",
        "false",
        &["CONFIG_GRPC_XDS_SERVER_USE_TLS"],
        "Speak TLS to the control plane",
    ),
    knob(
        "xds-ca",
        "PATH",
        "the roots of the system",
        &["CONFIG_GRPC_XDS_SERVER_TLS_CACERT"],
        "Who signs the control plane's certificate; PEM, read at each attempt to connect",
    ),
    knob(
        "xds-cert",
        "PATH",
        "",
        &["CONFIG_GRPC_XDS_CLIENT_TLS_CERT"],
        "Our certificate for the control plane",
    ),
    knob(
        "xds-key",
        "PATH",
        "",
        &["CONFIG_GRPC_XDS_CLIENT_TLS_KEY"],
        "Its key",
    ),
    knob(
        "xds-server-name",
        "NAME",
        "the host of its address",
        &["CONFIG_GRPC_XDS_SERVER_TLS_SAN"],
        "The name that the control plane's certificate has",
    ),
    knob(
        "xds-retry",
        "TIME",
        "1s",
        &[
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        ],
        "Wait before connecting again to the control plane; doubles with each failure, and half of it is chance",
    ),
    knob(
        "xds-retry-max",
        "TIME",
        "30s",
        &["XDS_CLIENT_BACKOFF_MAX_INTERVAL"],
        "The longest such wait",
    ),
    knob(
        "xds-max-message",
        "BYTES",
        "16MiB",
        &["XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"],
        "Largest answer of the control plane",
    ),
    knob(
        "grpc",
        "ADDR",
        "0.0.0.0:8081",
        &["GRPC_HOST", "GRPC_PORT", "GRPC_UDS"],
        "Where gRPC is served: HOST:PORT, :PORT or unix:PATH",
    ),
    knob(
        "http",
        "ADDR",
        "0.0.0.0:8080",
        &["HOST", "PORT"],
        "Where /json and health are served",
    ),
    knob(
        "admin",
        "ADDR",
        "127.0.0.1:6070",
        &["DEBUG_HOST", "DEBUG_PORT"],
        "Where operators look and change things. Beyond loopback only with --admin-token-file, or with \
         --tls-on admin and --tls-client-ca",
    ),
    knob(
        "admin-token-file",
        "PATH",
        "",
        &[],
        "File with the token that the admin listener asks for (authorization: Bearer TOKEN), except \
         for health",
    ),
    knob(
        "restrict",
        "WHAT,…",
        "",
        &[],
        "Only privileged clients may: refunds (is_negative_hits), resets, overrides (limit in a \
         descriptor); others get PERMISSION_DENIED",
    ),
    knob(
        "privileged-san",
        "NAME,…",
        "",
        &[],
        "Privileged are clients whose certificate carries one of these names (DNS or URI); wants \
         --tls-client-ca",
    ),
    knob(
        "privileged-token-file",
        "PATH",
        "",
        &[],
        "Privileged are clients that send this token (metadata authorization: Bearer TOKEN)",
    ),
    knob(
        "metrics",
        "ADDR",
        "",
        &["USE_PROMETHEUS", "PROMETHEUS_ADDR"],
        "Where metrics are served a second time",
    ),
    knob(
        "metrics-path",
        "PATH",
        "/metrics",
        &["PROMETHEUS_PATH"],
        "Path of the metrics there",
    ),
    knob(
        "tls-cert",
        "PATH",
        "",
        &["GRPC_SERVER_TLS_CERT"],
        "Certificate of the listeners that speak TLS, PEM, with those between it and the root; read \
         again when it changes, as all files of TLS",
    ),
    knob(
        "tls-key",
        "PATH",
        "",
        &["GRPC_SERVER_TLS_KEY"],
        "Key of that certificate, PEM",
    ),
    knob(
        "tls-client-ca",
        "PATH",
        "",
        &["GRPC_CLIENT_TLS_CACERT"],
        "Roots, PEM: clients must show a certificate that comes from one of them; the system's roots \
         never count",
    ),
    knob(
        "tls-client-san",
        "NAME,…",
        "any",
        &["GRPC_CLIENT_TLS_SAN"],
        "Names (DNS or URI), one of which the certificate of a client must carry; no wildcards",
    ),
    knob(
        "tls-on",
        "WHERE,…",
        "grpc",
        &["GRPC_SERVER_USE_TLS"],
        "Listeners that speak TLS when there is a certificate: grpc, http, admin, metrics",
    ),
    knob(
        "workers",
        "N",
        "one per core that the cgroup allows",
        &[],
        "Threads that serve gRPC",
    ),
    knob(
        "store",
        "WHERE",
        "memory",
        &["REDIS_URL", "REDIS_TYPE", "REDIS_SOCKET_TYPE"],
        "Where counters live: memory, redis://[USER:PASSWORD@]HOST:PORT[/DATABASE], \
         redis+unix://PATH, redis+sentinel://HOST:PORT,…/NAME, redis+cluster://HOST:PORT,…; rediss \
         in front of it is TLS",
    ),
    knob(
        "store-prefix",
        "TEXT",
        "porteiro",
        &["CACHE_KEY_PREFIX"],
        "First part of every key in the shared store",
    ),
    knob(
        "store-secret-file",
        "PATH",
        "",
        &[],
        "File with what makes the names of counters in the shared store unpredictable; the same for \
         all replicas",
    ),
    knob(
        "store-user-file",
        "PATH",
        "",
        &[],
        "File with the user of the shared store, read for each new connection",
    ),
    knob(
        "store-password-file",
        "PATH",
        "",
        &[],
        "File with the password of the shared store, read for each new connection",
    ),
    knob(
        "store-ca",
        "PATH",
        "the system's",
        &["REDIS_TLS_CACERT"],
        "Authority that the shared store's certificate must come from, PEM",
    ),
    knob(
        "store-cert",
        "PATH",
        "",
        &["REDIS_TLS_CLIENT_CERT"],
        "Certificate to show to the shared store, PEM; with --store-key",
    ),
    knob(
        "store-key",
        "PATH",
        "",
        &["REDIS_TLS_CLIENT_KEY"],
        "Key of that certificate, PEM",
    ),
    knob(
        "store-deadline",
        "TIME",
        "5ms",
        &[],
        "Longest wait for the shared store; at most half of a call's own timeout besides",
    ),
    knob(
        "store-max-waiting",
        "N",
        "1024",
        &[],
        "Most requests of a worker that wait for the shared store",
    ),
    knob(
        "store-session-life",
        "TIME",
        "15s",
        &[],
        "How long leases of a Session in the shared store outlive a replica that died; it renews \
         them every third of it",
    ),
    knob(
        "store-remember-refusals",
        "N",
        "0",
        &[],
        "Refusals of fixed windows that a process remembers until the window ends, to save round \
         trips; only where nothing is refunded: a refund at another replica is not heard of",
    ),
    knob(
        "replicas",
        "N",
        "1",
        &[],
        "Number of replicas that share the store: while it is away, each has its part of a limit \
         (on_store_failure: local)",
    ),
    knob(
        "max-keys",
        "N",
        "4000000",
        &[],
        "Most counters in memory; what happens beyond that: --when-full",
    ),
    knob(
        "max-memory",
        "BYTES",
        "",
        &[],
        "Most memory for counters and the entries of sliding logs, for example 512MiB; beyond that: \
         --when-full. 1GiB, or what --max-keys counters need, if not given. Leases have bounds of \
         their own",
    ),
    knob(
        "when-full",
        "WHAT",
        "evict_soonest",
        &[],
        "evict_soonest: the counter that would be fresh again first gives way; deny; allow",
    ),
    knob(
        "state",
        "FILE",
        "",
        &[],
        "Where counters of windows and buckets longer than a minute, and leases, survive a restart. \
         Without it they are forgotten",
    ),
    knob(
        "state-every",
        "TIME",
        "5s",
        &[],
        "How often the state file is written, besides at the stop: a kill loses so much",
    ),
    knob(
        "state-ignore-broken",
        "",
        "false",
        &[],
        "Begin anew when the state file cannot be read, instead of refusing to start",
    ),
    knob(
        "merge-domains",
        "",
        "false",
        &["MERGE_DOMAIN_CONFIG"],
        "Several files may have one domain",
    ),
    knob(
        "start-without-rules",
        "",
        "false",
        &["FORCE_START_WITHOUT_INITIAL_CONFIG"],
        "Start even when the rules cannot be loaded; requests fail until they can",
    ),
    knob(
        "ready-needs-rules",
        "",
        "false",
        &["HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"],
        "Not ready while no domain is loaded",
    ),
    knob(
        "reload-quiet",
        "TIME",
        "200ms",
        &[],
        "How long rule files must be unchanged before they are read again; too short reads half \
         a write",
    ),
    knob(
        "reload-poll",
        "TIME",
        "10s",
        &[],
        "How often to look for changed rule files when the file system tells nothing",
    ),
    knob(
        "near-limit-ratio",
        "RATIO",
        "0.8",
        &["NEAR_LIMIT_RATIO"],
        "Share of a limit above which hits count as near it in metrics",
    ),
    knob(
        "shadow-mode",
        "",
        "false",
        &["SHADOW_MODE"],
        "Refuse nobody, count who would have been",
    ),
    knob(
        "quota-mode",
        "",
        "false",
        &["QUOTA_MODE"],
        "Every descriptor is quota: refused only when all of a request are over",
    ),
    knob(
        "dynamic-metadata",
        "",
        "false",
        &["RESPONSE_DYNAMIC_METADATA"],
        "Answers carry dynamic metadata",
    ),
    knob(
        "limit-headers",
        "",
        "false",
        &["LIMIT_RESPONSE_HEADERS_ENABLED"],
        "Answers carry the reference's three headers",
    ),
    knob(
        "limit-header",
        "NAME",
        "RateLimit-Limit",
        &["LIMIT_LIMIT_HEADER"],
        "Name of the header with the limit",
    ),
    knob(
        "remaining-header",
        "NAME",
        "RateLimit-Remaining",
        &["LIMIT_REMAINING_HEADER"],
        "Name of the header with what is left",
    ),
    knob(
        "reset-header",
        "NAME",
        "RateLimit-Reset",
        &["LIMIT_RESET_HEADER"],
        "Name of the header with the seconds to the reset",
    ),
    knob(
        "max-message",
        "BYTES",
        "64KiB",
        &[],
        "Largest request; beyond it RESOURCE_EXHAUSTED",
    ),
    knob(
        "max-descriptors",
        "N",
        "32",
        &[],
        "Most descriptors in a request; beyond it INVALID_ARGUMENT, as for the next three",
    ),
    knob(
        "max-entries",
        "N",
        "16",
        &[],
        "Most entries in a descriptor",
    ),
    knob(
        "max-key",
        "BYTES",
        "1KiB",
        &[],
        "Longest key of an entry, and longest domain",
    ),
    knob(
        "max-value",
        "BYTES",
        "1KiB",
        &[],
        "Longest value of an entry",
    ),
    knob(
        "max-connections",
        "N",
        "10000",
        &[],
        "Most open gRPC connections; one more is closed at once",
    ),
    knob(
        "max-streams",
        "N",
        "1024",
        &[],
        "Most calls in flight on one gRPC connection",
    ),
    knob(
        "max-header-list",
        "BYTES",
        "16KiB",
        &[],
        "Most bytes of headers of a gRPC call",
    ),
    knob(
        "handshake-timeout",
        "TIME",
        "10s",
        &[],
        "How long a new gRPC connection may say nothing, and its TLS handshake may take",
    ),
    knob(
        "max-handshakes",
        "N",
        "1024",
        &[],
        "Most TLS handshakes of gRPC clients at a time; one more is closed at once",
    ),
    knob(
        "max-connection-age",
        "TIME",
        "1h",
        &["GRPC_MAX_CONNECTION_AGE"],
        "Age at which gRPC connections are asked to leave, give or take a tenth, so that load \
         spreads over new replicas; 0 is never",
    ),
    knob(
        "max-connection-age-grace",
        "TIME",
        "1h",
        &["GRPC_MAX_CONNECTION_AGE_GRACE"],
        "What they get to finish calls; shorter than a call loses it",
    ),
    knob(
        "max-connection-idle",
        "TIME",
        "0",
        &[],
        "Time without a call after which gRPC connections are asked to leave, at most twice that; 0 \
         is never",
    ),
    knob(
        "write-timeout",
        "TIME",
        "30s",
        &[],
        "How long a gRPC client may leave answers unread before its connection is cut",
    ),
    knob(
        "max-concurrent-calls",
        "N",
        "16384",
        &[],
        "Most gRPC calls that wait for a store or a permit, in equal parts per worker, of which one \
         connection gets at most half; one more is UNAVAILABLE with grpc-retry-pushback-ms",
    ),
    knob(
        "keepalive-interval",
        "TIME",
        "1m",
        &[],
        "Silence after which a gRPC connection is tested with a PING; 0 is never",
    ),
    knob(
        "keepalive-timeout",
        "TIME",
        "20s",
        &[],
        "How long the answer to that PING may take",
    ),
    knob(
        "http-max-connections",
        "N",
        "1024",
        &[],
        "Most open connections of each HTTP listener",
    ),
    knob(
        "http-header-timeout",
        "TIME",
        "10s",
        &[],
        "How long an HTTP client may take for the head of a request",
    ),
    knob(
        "http-request-timeout",
        "TIME",
        "30s",
        &[],
        "How long an HTTP request may take from there to its answer",
    ),
    knob(
        "http-write-timeout",
        "TIME",
        "30s",
        &[],
        "How long an HTTP client may leave its answer unread before its connection is cut",
    ),
    knob(
        "http-max-body",
        "BYTES",
        "256KiB",
        &[],
        "Largest body of an HTTP request",
    ),
    knob(
        "drain-delay",
        "TIME",
        "0s",
        &[],
        "How long to serve on after SIGTERM while not ready, for load balancers to notice",
    ),
    knob(
        "drain-deadline",
        "TIME",
        "30s",
        &[],
        "How long connections may take to finish after that before they are cut",
    ),
    knob(
        "reuse-port",
        "",
        "false",
        &[],
        "Let a second process listen on the same ports (SO_REUSEPORT), for swaps without a gap",
    ),
    knob(
        "otlp",
        "URL",
        "",
        &[
            "TRACING_ENABLED",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        ],
        "Collector that spans of calls go to: http://HOST:4317 or https://…",
    ),
    knob(
        "otlp-protocol",
        "NAME",
        "",
        &[
            "TRACING_EXPORTER_PROTOCOL",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ],
        "How they go there: grpc, the default with --otlp, or http/protobuf (http), the default with \
         TRACING_ENABLED",
    ),
    knob(
        "otlp-sample",
        "RATIO",
        "1",
        &["TRACING_SAMPLING_RATE", "OTEL_TRACES_SAMPLER_ARG"],
        "Share of the calls without traceparent that have a span; those with one do as it says",
    ),
    knob(
        "otlp-service-name",
        "TEXT",
        "porteiro",
        &["TRACING_SERVICE_NAME", "OTEL_SERVICE_NAME"],
        "Who we are to the collector",
    ),
    knob(
        "max-stat-paths",
        "N",
        "10000",
        &[],
        "Most names that texts of requests have in metrics (detailed_metric, value_to_metric, \
         overrides, unknown domains): those with the most traffic; the rest is DOMAIN.other",
    ),
    knob(
        "top-sample",
        "N",
        "32",
        &[],
        "Of how many requests a busy worker counts one for /top, which names the heaviest callers of \
         each rule; 1: all, 0: none",
    ),
    knob(
        "log-level",
        "LEVEL",
        "info",
        &["LOG_LEVEL"],
        "trace, debug, info, warn, error or off",
    ),
    knob(
        "log-format",
        "FORMAT",
        "text",
        &["LOG_FORMAT"],
        "text, or json with @timestamp, level and @message",
    ),
    knob(
        "log-refusals",
        "HOW",
        "off",
        &[],
        "Refusals that have a log line: 1/N (one in N) or N/s (the first N of a second); PUT \
         /log-refusals on the admin port changes it",
    ),
];

/// Serves the transport with an empty decision, to measure what it costs.
pub(super) const NOOP: &str = "noop";

/// Variables of the reference that ask for what is not here. Whether they were set is said once.
pub(super) const UNSUPPORTED: &[&str] = &[
    "BACKEND_TYPE",
    "DISABLE_STATS",
    "EXPIRATION_JITTER_MAX_SECONDS",
    "EXTRA_TAGS",
    "GRPC_SERVER_TLS_CA_CERT",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "MEMCACHE_HOST_PORT",
    "MEMCACHE_MAX_IDLE_CONNS",
    "MEMCACHE_SRV",
    "MEMCACHE_SRV_REFRESH",
    "MEMCACHE_TLS",
    "MEMCACHE_TLS_CACERT",
    "MEMCACHE_TLS_CLIENT_CERT",
    "MEMCACHE_TLS_CLIENT_KEY",
    "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
    "PROMETHEUS_MAPPER_YAML",
    "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
    "REDIS_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_PERSECOND",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_PIPELINE_LIMIT",
    "REDIS_PERSECOND_PIPELINE_WINDOW",
    "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_PERSECOND_POOL_SIZE",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_TIMEOUT",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_TYPE",
    "REDIS_PERSECOND_URL",
    "REDIS_PIPELINE_LIMIT",
    "REDIS_PIPELINE_WINDOW",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_POOL_SIZE",
    "REDIS_STARTUP_INITIAL_INTERVAL",
    "REDIS_STARTUP_MAX_ELAPSED_TIME",
    "REDIS_STARTUP_MAX_INTERVAL",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    "STATSD_HOST",
    "STATSD_PORT",
    "STATSD_PROTOCOL",
    "STATS_FLUSH_INTERVAL",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "USE_DOG_STATSD",
    "USE_DOG_STATSD_MOGRIFIERS",
    "USE_STATSD",
    "XDS_CLIENT_BACKOFF_JITTER",
    "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
];

/// Whether setting an unsupported variable to this asks for nothing that is missing.
pub(super) fn asks_for_nothing(variable: &str, value: &str) -> bool {
    matches!(
        (variable, value),
        ("BACKEND_TYPE", "redis")
            | ("LOCAL_CACHE_SIZE_IN_BYTES", "0")
            | (_, "" | "false" | "False" | "FALSE" | "f" | "F")
    )
}
