//! The settings of `porteiro serve`, from flags and environment, with everything that is wrong
//! said at once.

mod access;
mod knobs;
mod source;
mod spans;
mod store;
mod tls;
pub(super) mod values;
mod xds;

use std::{
    collections::BTreeMap, num::NonZeroUsize, path::PathBuf, thread::available_parallelism,
    time::Duration,
};

use clap::{Arg, ArgAction, ArgMatches, Command};

use self::{
    knobs::{KNOBS, NOOP},
    source::Source,
    store::SharedSettings,
};
use crate::{
    api::{bounds::Bounds, envoy_rls::AnswerOptions, headers::HeaderNames, privileges::Privileges},
    engine::EngineOptions,
    server::{Address, HttpLimits, Options, Transport, Watch, xds::XdsOptions},
    store::memory::{MemoryOptions, WhenFull},
    telemetry::{
        logging::{Level, LineFormat},
        refusals::LogRefusals,
        spans::export::SpanOptions,
    },
};

/// Everything that `porteiro serve` can be told.
#[expect(clippy::struct_excessive_bools, reason = "one per switch")]
#[derive(Debug)]
pub(super) struct Settings {
    /// Rule file or directory; none: the quickstart.
    pub(super) config: Option<PathBuf>,
    /// The control plane that rules come from instead.
    pub(super) xds: Option<XdsOptions>,
    pub(super) merge_domains: bool,
    pub(super) ready_needs_rules: bool,
    pub(super) watch: Watch,
    pub(super) grpc: Address,
    pub(super) http: Address,
    pub(super) admin: Address,
    /// A second listener for metrics.
    pub(super) metrics: Option<Address>,
    pub(super) reuse_port: bool,
    pub(super) workers: usize,
    pub(super) server: Options,
    pub(super) memory: MemoryOptions,
    /// The store that all replicas share; none: counters live in memory.
    pub(super) shared: Option<SharedSettings>,
    /// Where what was counted survives a restart.
    pub(super) state: Option<StateSettings>,
    pub(super) engine: EngineOptions,
    pub(super) answers: AnswerOptions,
    /// What only some clients may.
    pub(super) privileges: Privileges,
    /// Where spans of calls go, if somewhere.
    pub(super) spans: Option<SpanOptions>,
    pub(super) log_level: Level,
    pub(super) log_format: LineFormat,
    pub(super) log_refusals: LogRefusals,
    /// Serve the empty decision.
    pub(super) noop: bool,
    /// What was set and does nothing; to be logged.
    pub(super) warnings: Vec<String>,
}

/// How what was counted survives a restart.
#[derive(Debug)]
pub(super) struct StateSettings {
    pub(super) path: PathBuf,
    /// Between two writes.
    pub(super) every: Duration,
    /// A file that cannot be read is as good as none.
    pub(super) ignore_broken: bool,
}

/// The flags.
pub(super) fn flags(command: Command) -> Command {
    command.args(KNOBS.iter().map(knobs::Knob::arg)).arg(
        Arg::new(NOOP)
            .long(NOOP)
            .help("Serve an empty decision, to measure the transport")
            .action(ArgAction::SetTrue)
            .hide(true),
    )
}

/// The environment as it is; what is not Unicode is nobody's setting.
pub(super) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

impl Settings {
    /// Reads flags and environment.
    ///
    /// # Errors
    /// Everything that is wrong, one line each.
    pub(super) fn read(
        flags: &ArgMatches,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, Vec<String>> {
        let mut source = Source::new(flags, environment);
        let config = config(&mut source);
        let xds = xds::xds(&mut source);
        if xds.is_some() && source.ours("config").is_some() {
            source
                .problem("rules come from --config or from --xds-server, not from both".to_owned());
        }
        // The reference's variables of both are set side by side; its type decides.
        let config = config.filter(|_| xds.is_none());
        let mut settings = Self {
            merge_domains: switch(&mut source, "merge-domains"),
            ready_needs_rules: switch(&mut source, "ready-needs-rules"),
            watch: watch(&mut source, config.clone()),
            config,
            xds,
            grpc: grpc(&mut source),
            http: address(&mut source, "http", ["HOST", "PORT"], "0.0.0.0", 8080),
            // The reference opens this to everybody; what can be changed there should not be.
            admin: address(
                &mut source,
                "admin",
                ["DEBUG_HOST", "DEBUG_PORT"],
                "127.0.0.1",
                6070,
            ),
            metrics: metrics(&mut source),
            reuse_port: switch(&mut source, "reuse-port"),
            workers: source.take("workers", values::count)
                // Follows the CPU quota of the cgroup.
                .unwrap_or_else(|| available_parallelism().map_or(1, NonZeroUsize::get)),
            server: server(&mut source),
            memory: memory(&mut source),
            shared: store::shared(&mut source),
            state: state(&mut source),
            engine: EngineOptions {
                near_limit_ratio: source
                    .take("near-limit-ratio", values::ratio)
                    .unwrap_or(EngineOptions::default().near_limit_ratio),
                shadow_mode: switch(&mut source, "shadow-mode"),
                quota_mode: switch(&mut source, "quota-mode"),
                top_sample: source
                    .take("top-sample", values::number)
                    .unwrap_or(EngineOptions::default().top_sample),
                max_stat_paths: source
                    .take("max-stat-paths", values::count)
                    .unwrap_or(EngineOptions::default().max_stat_paths),
            },
            answers: answers(&mut source),
            privileges: access::privileges(&mut source),
            spans: spans::spans(&mut source),
            log_level: source.take("log-level", str::parse).unwrap_or_default(),
            log_format: source.take("log-format", str::parse).unwrap_or_default(),
            log_refusals: source.take("log-refusals", str::parse).unwrap_or_default(),
            noop: flags.get_flag(NOOP),
            warnings: source.warnings(),
        };
        access::check(&mut settings, &mut source);
        let problems = source.into_problems();
        if problems.is_empty() {
            Ok(settings)
        } else {
            Err(problems)
        }
    }
}

fn switch(source: &mut Source<'_>, name: &'static str) -> bool {
    source.take(name, values::boolean).unwrap_or_default()
}

/// The path of the rules; the reference puts it together from three variables.
fn config(source: &mut Source<'_>) -> Option<PathBuf> {
    let path = |text: &str| Ok::<_, String>(PathBuf::from(text));
    if let Some(ours) = source.take_ours("config", path) {
        return Some(ours);
    }
    // Checked, and otherwise without effect: links are followed wherever they move, and dot
    // entries are never rules.
    for name in ["RUNTIME_WATCH_ROOT", "RUNTIME_IGNOREDOTFILES"] {
        source.take_variable(name, values::boolean);
    }
    let root = source.variable("RUNTIME_ROOT");
    let below = source.variable("RUNTIME_SUBDIRECTORY");
    let app = source.variable("RUNTIME_APPDIRECTORY");
    if root.is_none() && below.is_none() && app.is_none() {
        return None;
    }
    let root = root.unwrap_or("/srv/runtime_data/current");
    // Joined as texts: an absolute part must not replace what is before it.
    let mut path = PathBuf::from(root);
    for part in [below.unwrap_or_default(), app.unwrap_or("config")] {
        path.extend(part.split('/').filter(|name| !name.is_empty()));
    }
    Some(path)
}

fn watch(source: &mut Source<'_>, path: Option<PathBuf>) -> Watch {
    let default = Watch::default();
    Watch {
        path,
        quiet: source
            .take("reload-quiet", values::duration)
            .unwrap_or(default.quiet),
        poll: source
            .take("reload-poll", values::positive_duration)
            .unwrap_or(default.poll),
    }
}

fn grpc(source: &mut Source<'_>) -> Address {
    if let Some(ours) = source.take_ours("grpc", str::parse) {
        return ours;
    }
    if let Some(path) = source.variable("GRPC_UDS") {
        return Address::Unix(path.into());
    }
    theirs(source, ["GRPC_HOST", "GRPC_PORT"], "0.0.0.0", 8081)
}

/// An address by our names, or by the reference's pair of host and port.
fn address(
    source: &mut Source<'_>,
    name: &'static str,
    [host_name, port_name]: [&str; 2],
    host: &str,
    port: u16,
) -> Address {
    if let Some(ours) = source.take_ours(name, str::parse) {
        return ours;
    }
    theirs(source, [host_name, port_name], host, port)
}

/// An address by the reference's pair of host and port.
fn theirs(
    source: &mut Source<'_>,
    [host_name, port_name]: [&str; 2],
    host: &str,
    port: u16,
) -> Address {
    let port = source
        .take_variable(port_name, |text| {
            text.parse().map_err(|_| "want a port from 0 to 65535")
        })
        .unwrap_or(port);
    let theirs = source.take_variable(host_name, |host| {
        Address::tcp(host, port).ok_or("want a name or an address")
    });
    theirs.unwrap_or_else(|| Address::Tcp {
        host: host.to_owned(),
        port,
    })
}

fn metrics(source: &mut Source<'_>) -> Option<Address> {
    if let Some(ours) = source.take_ours("metrics", str::parse) {
        return Some(ours);
    }
    let wanted = source.take_variable("USE_PROMETHEUS", values::boolean)?;
    let default = Address::Tcp {
        host: String::new(),
        port: 9090,
    };
    let theirs = source.take_variable("PROMETHEUS_ADDR", str::parse);
    wanted.then(|| theirs.unwrap_or(default))
}

fn server(source: &mut Source<'_>) -> Options {
    let default = Options::default();
    Options {
        transport: transport(source),
        http: http(source),
        tls: tls::tls(source),
        admin_token: source.take("admin-token-file", access::token),
        bounds: bounds(source),
        drain_delay: source
            .take("drain-delay", values::duration)
            .unwrap_or(default.drain_delay),
        drain_deadline: source
            .take("drain-deadline", values::duration)
            .unwrap_or(default.drain_deadline),
        metrics_path: source
            .take("metrics-path", absolute_path)
            .unwrap_or(default.metrics_path),
        start_without_rules: switch(source, "start-without-rules"),
    }
}

fn absolute_path(text: &str) -> Result<String, &'static str> {
    let plain = |c: char| c.is_ascii_graphic() && !"{}?#*:".contains(c);
    if text.starts_with('/') && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("want a path that begins with /")
    }
}

fn transport(source: &mut Source<'_>) -> Transport {
    let default = Transport::default();
    Transport {
        max_connections: source
            .take("max-connections", values::count)
            .unwrap_or(default.max_connections),
        max_streams: source
            .take("max-streams", values::count_u32)
            .unwrap_or(default.max_streams),
        max_header_list: source
            .take("max-header-list", values::bytes_u32)
            .unwrap_or(default.max_header_list),
        handshake_timeout: source
            .take("handshake-timeout", values::positive_duration)
            .unwrap_or(default.handshake_timeout),
        max_handshakes: source
            .take("max-handshakes", values::count)
            .unwrap_or(default.max_handshakes),
        max_age: source
            .take("max-connection-age", values::optional_duration)
            .unwrap_or(default.max_age),
        max_age_grace: source
            .take("max-connection-age-grace", values::duration)
            .unwrap_or(default.max_age_grace),
        max_idle: source
            .take("max-connection-idle", values::optional_duration)
            .unwrap_or(default.max_idle),
        write_timeout: source
            .take("write-timeout", values::positive_duration)
            .unwrap_or(default.write_timeout),
        max_calls: source
            .take("max-concurrent-calls", values::count)
            .unwrap_or(default.max_calls),
        keepalive_interval: source
            .take("keepalive-interval", values::optional_duration)
            .unwrap_or(default.keepalive_interval),
        keepalive_timeout: source
            .take("keepalive-timeout", values::positive_duration)
            .unwrap_or(default.keepalive_timeout),
    }
}

fn http(source: &mut Source<'_>) -> HttpLimits {
    let default = HttpLimits::default();
    HttpLimits {
        max_connections: source
            .take("http-max-connections", values::count)
            .unwrap_or(default.max_connections),
        header_timeout: source
            .take("http-header-timeout", values::positive_duration)
            .unwrap_or(default.header_timeout),
        request_timeout: source
            .take("http-request-timeout", values::positive_duration)
            .unwrap_or(default.request_timeout),
        write_timeout: source
            .take("http-write-timeout", values::positive_duration)
            .unwrap_or(default.write_timeout),
        max_body: source
            .take("http-max-body", values::bytes)
            .unwrap_or(default.max_body),
    }
}

fn bounds(source: &mut Source<'_>) -> Bounds {
    let default = Bounds::default();
    Bounds {
        max_message: source
            .take("max-message", values::bytes)
            .unwrap_or(default.max_message),
        max_descriptors: source
            .take("max-descriptors", values::count)
            .unwrap_or(default.max_descriptors),
        max_entries: source
            .take("max-entries", values::count)
            .unwrap_or(default.max_entries),
        max_key: source
            .take("max-key", values::bytes)
            .unwrap_or(default.max_key),
        max_value: source
            .take("max-value", values::bytes)
            .unwrap_or(default.max_value),
    }
}

fn memory(source: &mut Source<'_>) -> MemoryOptions {
    let default = MemoryOptions::default();
    let positive = |text: &str| {
        text.parse()
            .map_err(|_| "want a whole number of at least 1")
    };
    MemoryOptions {
        max_keys: source
            .take("max-keys", positive)
            .unwrap_or(default.max_keys),
        max_bytes: source
            .take("max-memory", values::bytes)
            .and_then(NonZeroUsize::new),
        when_full: source
            .take("when-full", |text| match text {
                "evict_soonest" => Ok(WhenFull::EvictSoonest),
                "deny" => Ok(WhenFull::Deny),
                "allow" => Ok(WhenFull::Allow),
                _ => Err("want evict_soonest, deny or allow"),
            })
            .unwrap_or(default.when_full),
    }
}

fn state(source: &mut Source<'_>) -> Option<StateSettings> {
    let path = source.take("state", |text| Ok::<_, String>(PathBuf::from(text)));
    let every = source.take("state-every", values::positive_duration);
    let ignore_broken = switch(source, "state-ignore-broken");
    Some(StateSettings {
        path: path?,
        every: every.unwrap_or(Duration::from_secs(5)),
        ignore_broken,
    })
}

fn answers(source: &mut Source<'_>) -> AnswerOptions {
    let default = HeaderNames::default();
    let names = HeaderNames {
        limit: source
            .take("limit-header", values::header_name)
            .unwrap_or(default.limit),
        remaining: source
            .take("remaining-header", values::header_name)
            .unwrap_or(default.remaining),
        reset: source
            .take("reset-header", values::header_name)
            .unwrap_or(default.reset),
    };
    AnswerOptions {
        headers: switch(source, "limit-headers").then_some(names),
        dynamic_metadata: switch(source, "dynamic-metadata"),
    }
}

#[cfg(test)]
mod tests;
