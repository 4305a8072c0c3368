"""The README is true: its files are the files, its commands run, its tables are complete."""

import re
import subprocess

import pytest

from support import ROOT, porteiro
from support import envoy as envoys
from support.child import Child
from support.http import status_of
from support.ports import free_port
from support.wait import in_one_window, until

README = (ROOT / "README.md").read_text()


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def section(title):
    """The text under a heading, up to the next heading."""
    found = re.search(rf"^#+ {title}\n(.*?)(?=^#+ |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, title
    return found.group(1)


def test_the_yaml_blocks_are_the_deployed_files():
    files = ["deploy/envoy/rules.yaml", "deploy/envoy/envoy.yaml"]
    assert blocks("yaml") == [(ROOT / file).read_text() for file in files]


COMMANDS = {
    "cargo run --release": "test_quickstart.py, with the binary",
    "cargo run --release -- check deploy/envoy/rules.yaml": "test_the_commands_on_the_rules",
    "cargo run --release -- serve --config deploy/envoy/rules.yaml": "test_the_commands_on_the_rules",
    "cargo run --release -- explain --config deploy/envoy/rules.yaml --domain edge"
    " --descriptor route=login,remote_address=10.0.0.1 --cost 4": "test_the_explained_request",
    "bash tests/all.sh": "this very run",
    "python3 -m http.server 9090 --bind 127.0.0.1": "test_try_it",
    "envoy -c deploy/envoy/envoy.yaml": "test_try_it",
    "for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:10000/login; done": "test_try_it",
}


def test_every_command_is_run_by_a_test():
    assert {line for block in blocks("sh") for line in block.splitlines()} == set(COMMANDS)


def arguments(command):
    """The words after `cargo run --release --`, for the binary that is there already."""
    cargo, _, words = command.partition(" -- ")
    assert cargo == "cargo run --release"
    return words.split()


def command(test):
    return [command for command, where in COMMANDS.items() if where == test]


def test_the_explained_request():
    (explain,) = map(arguments, command("test_the_explained_request"))
    done = porteiro.run(*explain, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "edge.route_login.remote_address" in done.stdout
    assert "NEVER" in done.stdout.upper(), "four at once never fit into three a minute"


def test_the_commands_on_the_rules(folder, started):
    check, serve = map(arguments, command("test_the_commands_on_the_rules"))
    assert porteiro.run(*check, cwd=ROOT).returncode == 0
    http = free_port()
    env = {
        "PORTEIRO_HTTP": f"127.0.0.1:{http}",
        "PORTEIRO_GRPC": f"127.0.0.1:{free_port()}",
        "PORTEIRO_ADMIN": f"127.0.0.1:{free_port()}",
    }
    child = Child([porteiro.binary(), *serve], folder / "serve.log", env, cwd=ROOT)
    started.append(child)
    child.until(lambda: status_of(http, "/readyz") == 200, "readiness")


def test_try_it(serve, folder, started):
    """The four terminals, with other ports."""
    upstream, run_envoy, ask = command("test_try_it")
    port = free_port()
    words = upstream.replace("9090", str(port)).split()
    started.append(Child(words, folder / "upstream.log", cwd=folder))
    (folder / "login").write_text("welcome\n")
    until(lambda: status_of(port, "/login") == 200, "the upstream")
    limiter = serve(ROOT / "deploy/envoy/rules.yaml")
    assert run_envoy.split()[-1] == str(envoys.CONFIG.relative_to(ROOT))
    envoy = envoys.Envoy(folder, limiter.grpc_port, port)
    started.append(envoy)
    envoy.until_ready()
    shell = ["bash", "-c", ask.replace("10000", str(envoy.port))]

    def statuses():
        done = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.split()

    assert in_one_window(60, statuses) == ["200", "200", "200", "429"]


REFERENCE = """
HOST PORT GRPC_HOST GRPC_PORT GRPC_UDS DEBUG_HOST DEBUG_PORT
GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN
LOG_LEVEL LOG_FORMAT
CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG MERGE_DOMAIN_CONFIG
RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT
CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL
CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS
CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY
CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN
XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR
XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
BACKEND_TYPE NEAR_LIMIT_RATIO CACHE_KEY_PREFIX EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES
STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA
LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER
HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
REDIS_SOCKET_TYPE REDIS_URL REDIS_TYPE REDIS_PERSECOND REDIS_POOL_SIZE REDIS_AUTH REDIS_SENTINEL_AUTH
REDIS_TLS REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT REDIS_TLS_SKIP_HOSTNAME_VERIFICATION
REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_TIMEOUT
REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_STARTUP_INITIAL_INTERVAL
REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME
REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_TYPE REDIS_PERSECOND_POOL_SIZE
REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS REDIS_PERSECOND_PIPELINE_WINDOW
REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_TIMEOUT
REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR
MEMCACHE_HOST_PORT MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_MAX_IDLE_CONNS MEMCACHE_TLS
MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION
USE_STATSD STATSD_HOST STATSD_PORT STATSD_PROTOCOL STATS_FLUSH_INTERVAL EXTRA_TAGS DISABLE_STATS
USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS
USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS
TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID
TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE
""".split()
"""Every variable that the reference reads (DOG_STATSD_MOGRIFIER_<NAME>_… aside)."""


def listed(table):
    """The variables of a table of the README, a trailing `*` as it is written."""
    first_column = "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    return re.findall(r"`([A-Z][A-Z_]*\*?)`", first_column)


@pytest.fixture(scope="module")
def tables():
    """The patterns of the two tables: kept, warned about."""
    found = re.findall(r"(?:^\|.*\n)+", section("Environment variables of the reference"), re.MULTILINE)
    kept, warned = found
    return listed(kept), listed(warned)


def matching(patterns, name):
    return [
        pattern
        for pattern in patterns
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
    ]


def test_every_variable_of_the_reference_stands_in_one_table(tables):
    kept, warned = tables
    places = {name: matching(kept, name) + matching(warned, name) for name in REFERENCE}
    assert {name: found for name, found in places.items() if len(found) != 1} == {}


def help_pairs():
    """Our variable → the reference's, from the help."""
    text = " ".join(porteiro.run("serve", "--help").stdout.split())
    return {
        names[0]: names[1:]
        for found in re.findall(r"\[env: ([A-Z_, ]+)\]", text)
        for names in [found.split(", ")]
    }


def test_the_help_names_what_the_table_keeps(tables):
    kept, _ = tables
    in_help = {name for names in help_pairs().values() for name in names}
    without_flag = {
        *("RUNTIME_WATCH_ROOT", "RUNTIME_IGNOREDOTFILES"),
        *("REDIS_AUTH", "REDIS_SENTINEL_AUTH", "REDIS_TLS", "REDIS_TIMEOUT"),
        *("TRACING_SERVICE_NAMESPACE", "TRACING_SERVICE_INSTANCE_ID"),
        *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
        "OTEL_RESOURCE_ATTRIBUTES",
    }
    assert in_help | without_flag == set(kept)


def test_what_is_not_there_is_named_in_one_warning(tables, serve):
    _, warned = tables
    set_ones = {name: "1" for name in REFERENCE if matching(warned, name)}
    log = serve(ROOT / "deploy/envoy/rules.yaml", env=set_ones).output()
    warnings = [line for line in log.splitlines() if "WARN" in line]
    assert len(warnings) == 1, log
    for name in set_ones:
        assert re.search(rf"\b{name}\b", warnings[0]), name


def test_what_is_kept_is_not_warned_about(tables, serve):
    kept, _ = tables
    values = {
        "MERGE_DOMAIN_CONFIG": "true",
        "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true",
        "NEAR_LIMIT_RATIO": "0.5",
        "SHADOW_MODE": "true",
        "QUOTA_MODE": "true",
        "RESPONSE_DYNAMIC_METADATA": "true",
        "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
        "LIMIT_LIMIT_HEADER": "X-Limit",
        "LIMIT_REMAINING_HEADER": "X-Remaining",
        "LIMIT_RESET_HEADER": "X-Reset",
        "GRPC_MAX_CONNECTION_AGE": "24h",
        "GRPC_MAX_CONNECTION_AGE_GRACE": "1h",
        "RUNTIME_WATCH_ROOT": "false",
        "RUNTIME_IGNOREDOTFILES": "true",
        "USE_PROMETHEUS": "true",
        "PROMETHEUS_ADDR": f"127.0.0.1:{free_port()}",
        "PROMETHEUS_PATH": "/stats",
        "LOG_LEVEL": "debug",
        "LOG_FORMAT": "text",
    }
    assert set(values) <= set(kept)
    limiter = serve(ROOT / "deploy/envoy/rules.yaml", env=values)
    assert "WARN" not in limiter.output()
