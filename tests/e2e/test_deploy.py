"""deploy/, tried as far as a machine without Docker and Kubernetes allows."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support import ROOT, porteiro
from support.child import Child
from support.http import ask, status_of
from support.ports import free_port
from support.wait import in_one_window
from test_reload import config_map

MANIFEST = ROOT / "deploy/kubernetes/porteiro.yaml"
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
UNIT = ROOT / "deploy/systemd/porteiro.service"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()


def tool(name):
    """A program of this virtual environment."""
    return Path(sys.executable).parent / name


@pytest.fixture(scope="module")
def manifest():
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def container(manifest):
    (container,) = manifest["Deployment"]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.fixture(scope="module")
def rules(manifest):
    return manifest["ConfigMap"]["data"]


def test_the_rules_of_the_manifest_pass(rules, tmp_path):
    for name, text in rules.items():
        (tmp_path / name).write_text(text)
    done = porteiro.run("check", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_container_starts_with_its_environment_and_its_probes_pass(
    container, rules, folder, started
):
    """The manifest's variables with other ports and another root; the command of the reference's
    manifests, `/bin/ratelimit`; a volume laid out as the kubelet does."""
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    ports = {port["containerPort"]: free_port() for port in container["ports"]}
    named = {port["name"]: ports[port["containerPort"]] for port in container["ports"]}
    for name, value in env.items():
        for inside, outside in ports.items():
            if re.search(rf"(^|:){inside}$", value):
                env[name] = value.replace(str(inside), str(outside))
    (mount,) = container["volumeMounts"]
    path = folder / "ratelimit/config"
    assert mount["mountPath"] == "/data/ratelimit/config" and env["RUNTIME_ROOT"] == "/data"
    path.mkdir(parents=True)
    (name,) = rules
    assert name.endswith(".yaml")
    config_map(path, "2026_01", rules[name])
    env["RUNTIME_ROOT"] = str(folder)
    env["PORTEIRO_ADMIN"] = f"127.0.0.1:{free_port()}"
    command = folder / "ratelimit/ratelimit"
    command.symlink_to(porteiro.binary())

    child = Child([command], folder / "container.log", env)
    started.append(child)
    child.until(lambda: status_of(named["http"], "/readyz") == 200, "readiness")

    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        check = container[probe]["httpGet"]
        assert ask(named[check["port"]], check["path"]).status == 200, probe
    metrics = ask(named["metrics"], "/metrics")
    assert metrics.status == 200
    assert b"ratelimit_service_config_load_success" in metrics.body
    assert "warn" not in child.output().lower(), "no variable of the manifest is refused"
    assert child.stop() == 0


def ours(path):
    """The pod of a manifest's Deployment, and the container in it that runs porteiro."""
    documents = yaml.safe_load_all(path.read_text())
    (deployment,) = [document for document in documents if document["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    containers = pod["containers"] + pod.get("initContainers", [])
    (container,) = [one for one in containers if one["image"].startswith("porteiro:")]
    return pod, container


def data_of(path):
    """The rule files of a manifest's ConfigMaps."""
    documents = yaml.safe_load_all(path.read_text())
    return {
        name: text
        for document in documents
        if document["kind"] == "ConfigMap"
        for name, text in document["data"].items()
    }


def with_other_ports(env, ports):
    """Variables whose values end in one of the ports, with the free port instead."""
    for name, value in env.items():
        for inside, outside in ports.items():
            env[name] = re.sub(rf"(^|:){inside}$", rf"\g<1>{outside}", env[name])
    return env


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_fit_the_schema_of_kubernetes(path, version):
    words = [tool("kubernetes-validate"), "--strict", "-k", version, path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_give_no_rights(path):
    pod, container = ours(path)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65534
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", ["fleet", "sidecar"])
def test_other_manifests_start_with_their_environment(name, folder, started):
    path = ROOT / f"deploy/kubernetes/{name}.yaml"
    _, container = ours(path)
    place = folder / name
    (place / "rules").mkdir(parents=True)
    rules = data_of(path) or {"edge.yaml": (ROOT / "deploy/envoy/rules.yaml").read_text()}
    for file, text in rules.items():
        (place / "rules" / file).write_text(text)
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    if "PORTEIRO_STORE" in env:
        (place / "password").write_text("a password\n")
        (place / "counter-key").write_text("a key\n")
        redis = free_port()
        words = ["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", ""]
        started.append(Child([*words, "--requirepass", "a password"], place / "redis.log"))
        assert env["PORTEIRO_STORE"] == "redis://redis:6379"
        env["PORTEIRO_STORE"] = f"redis://127.0.0.1:{redis}"
    ports = {port["containerPort"]: free_port() for port in container["ports"]}
    named = {port["name"]: ports[port["containerPort"]] for port in container["ports"]}
    env.setdefault("PORTEIRO_GRPC", "127.0.0.1:8081")
    env.setdefault("PORTEIRO_HTTP", "127.0.0.1:8080")
    ports.setdefault(8081, free_port())
    env = with_other_ports(env, ports)
    env["PORTEIRO_ADMIN"] = f"127.0.0.1:{free_port()}"
    for variable, value in env.items():
        for mount in container["volumeMounts"]:
            inside = place / "rules" if mount["name"] == "rules" else place
            env[variable] = re.sub(f"^{mount['mountPath']}(?=/|$)", str(inside), env[variable])

    child = Child([porteiro.binary()], folder / f"{name}.log", env)
    started.append(child)
    child.until(lambda: status_of(named["http"], "/readyz") == 200, "readiness")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            check = container[probe]["httpGet"]
            assert ask(named[check["port"]], check["path"]).status == 200, probe
    # The store's first probe may be late on a busy machine, and says so.
    warnings = [line for line in child.output().splitlines() if "WARN" in line]
    assert [line for line in warnings if "the shared store is away" not in line] == []
    assert child.stop() == 0


def test_the_composed_replicas_start_with_their_commands(folder, started):
    redis = free_port()
    words = ["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", ""]
    started.append(Child(words, folder / "composed-redis.log"))
    replicas = [one for one in COMPOSE["services"].values() if one["image"].startswith("porteiro:")]
    (rules,) = replicas[0]["volumes"]
    source, inside, mode = rules.split(":")
    assert mode == "ro" and inside == "/rules/edge.yaml"
    place = folder / "composed"
    place.mkdir()
    shutil.copy(ROOT / "deploy" / source, place / "edge.yaml")
    http = []
    for number, replica in enumerate(replicas):
        command = [word if word != "/rules" else str(place) for word in replica["command"]]
        for flag in ("--grpc", "--http", "--admin"):
            command[command.index(flag) + 1] = f"127.0.0.1:{free_port()}"
        store = command.index("--store") + 1
        assert command[store] == "redis://127.0.0.1:6379"
        command[store] = f"redis://127.0.0.1:{redis}"
        http.append(int(command[command.index("--http") + 1].rpartition(":")[2]))
        # A busy machine may need more than the usual 5 ms.
        command += ["--store-deadline", "2s"]
        child = Child([porteiro.binary(), *command], folder / f"composed-{number}.log")
        started.append(child)
        child.until(lambda: status_of(http[-1], "/readyz") == 200, "readiness")
    entries = [{"key": "route", "value": "login"}, {"key": "remote_address", "value": "10.0.0.1"}]
    login = json.dumps({"domain": "edge", "descriptors": [{"entries": entries}]})
    # Three logins a minute, whichever replica is asked.
    def ask_both():
        return [ask(http[call % 2], "/json", "POST", body=login).status for call in range(6)]

    statuses = in_one_window(60, ask_both)
    assert sorted(statuses) == [200, 200, 200, 429, 429, 429]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_reads_the_unit(tmp_path):
    text = UNIT.read_text().replace("/usr/local/bin/porteiro", str(porteiro.binary()))
    unit = tmp_path / "porteiro.service"
    unit.write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", unit]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "porteiro.service" in line]
    assert done.returncode == 0 and not complaints, done.stderr


def instructions(name):
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def test_the_dockerfile_passes_its_linter():
    words = [tool("hadolint"), ROOT / "deploy/Dockerfile"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_built_from_files_that_are_here():
    for words in map(shlex.split, instructions("COPY")):
        if not words[0].startswith("--from"):
            for source in words[:-1]:
                assert (ROOT / source).exists(), source
    assert instructions("USER") == ["65534:65534"]


def test_the_image_builds_what_cargo_builds_here():
    """The RUN lines, as far as they can run here: cargo's words are those of this checkout."""
    (build,) = [line for line in instructions("RUN") if line.startswith("cargo")]
    assert build == "cargo build --release --locked --bin porteiro"
    assert (ROOT / "Cargo.lock").exists()
    manifest = (ROOT / "Cargo.toml").read_text()
    minimum = re.search(r'^rust-version = "(.*)"$', manifest, re.MULTILINE).group(1)
    assert instructions("FROM")[0].startswith(f"rust:{minimum}-")


def copied_for_the_build(folder):
    """What the image's build sees: the files that COPY takes from the checkout."""
    for words in map(shlex.split, instructions("COPY")):
        if words[0].startswith("--from"):
            continue
        for source in words[:-1]:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder / source)
            else:
                shutil.copy(ROOT / source, folder / source)
    return folder


def test_cargo_is_content_with_what_the_image_copies(tmp_path):
    metadata = "cargo metadata --locked --offline --no-deps --format-version 1"
    folder = copied_for_the_build(tmp_path)
    done = subprocess.run(metadata.split(), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_build_of_the_image_in_a_copy_of_what_it_copies(tmp_path):
    (build,) = [line for line in instructions("RUN") if line.startswith("cargo")]
    folder = copied_for_the_build(tmp_path)
    env = os.environ | {"CARGO_TARGET_DIR": str(folder / "target")}
    subprocess.run(shlex.split(build), cwd=folder, env=env, check=True, timeout=3_000)
    built = folder / "target/release/porteiro"
    linked = subprocess.run(["ldd", built], capture_output=True, text=True, check=True).stdout
    libraries = {line.split()[0].rpartition("/")[2] for line in linked.splitlines()}
    # What distroless/cc has.
    known = {"linux-vdso.so.1", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2"}
    assert libraries <= known, libraries
