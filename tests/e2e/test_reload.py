"""Rules change under a running process, the way editors, tools and Kubernetes change files."""

import os
import signal

import pytest

from support import rls
from support.wait import until


def rules(domain, limit):
    return (
        f"domain: {domain}\n"
        "descriptors:\n"
        f"  - {{key: k, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n"
    )


@pytest.fixture
def limit_of(generated, serve):
    """Starts porteiro on `config`; returns a function from a domain to the limit it answers with,
    and the process."""
    clients = []

    def start(config, **options):
        porteiro = serve(config, **options)
        client = rls.Client(porteiro.target)
        clients.append(client)

        def limit_of(domain):
            status = client.ask(rls.request(domain, [("k", "v")])).statuses[0]
            return status.current_limit.requests_per_unit or None

        return limit_of, porteiro

    yield start
    for client in clients:
        client.channel.close()


def test_a_file_that_is_written_again(limit_of, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(rules("a", 10))
    limit, _ = limit_of(tmp_path)
    assert limit("a") == 10
    file.write_text(rules("a", 20))
    until(lambda: limit("a") == 20, "the written file")


def test_a_single_file_that_is_replaced_by_rename(limit_of, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(rules("a", 10))
    limit, _ = limit_of(file)
    for number in (20, 30):
        (tmp_path / "new").write_text(rules("a", number))
        os.replace(tmp_path / "new", file)
        until(lambda number=number: limit("a") == number, "the renamed file")


def test_files_that_come_and_go(limit_of, tmp_path):
    (tmp_path / "a.yaml").write_text(rules("a", 10))
    limit, _ = limit_of(tmp_path)
    assert limit("b") is None
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b.yaml").write_text(rules("b", 5))
    until(lambda: limit("b") == 5, "a new file in a new folder")
    (tmp_path / "deep/b.yaml").unlink()
    until(lambda: limit("b") is None, "the end of its domain")
    assert limit("a") == 10


def config_map(folder, version, text):
    """Writes a version of a ConfigMap volume the way the kubelet does: a new timestamped folder,
    then one rename of the `..data` link."""
    (folder / f"..{version}").mkdir()
    (folder / f"..{version}" / "a.yaml").write_text(text)
    os.symlink(f"..{version}", folder / "..data_tmp")
    os.replace(folder / "..data_tmp", folder / "..data")
    if not (folder / "a.yaml").is_symlink():
        os.symlink("..data/a.yaml", folder / "a.yaml")


@pytest.mark.parametrize("form", ["--config", "RUNTIME_ROOT"])
def test_a_config_map_volume(limit_of, tmp_path, form):
    if form == "--config":
        folder, config, env = tmp_path, tmp_path, None
    else:
        folder = tmp_path / "ratelimit/config"
        folder.mkdir(parents=True)
        config = None
        env = {
            "RUNTIME_ROOT": str(tmp_path),
            "RUNTIME_SUBDIRECTORY": "ratelimit",
            "RUNTIME_WATCH_ROOT": "false",
            "RUNTIME_IGNOREDOTFILES": "true",
        }
    config_map(folder, "2026_01", rules("a", 10))
    limit, _ = limit_of(config, env=env)
    assert limit("a") == 10, "seen once, although it lies there twice"
    for number in (2, 3):
        config_map(folder, f"2026_0{number}", rules("a", 10 * number))
        until(lambda number=number: limit("a") == 10 * number, "the swapped ..data link")


def test_the_runtime_root_is_a_link_that_is_swapped(limit_of, tmp_path):
    """RUNTIME_WATCH_ROOT=true, as deployment tools of the reference do it."""
    for version in (1, 2):
        folder = tmp_path / f"v{version}/ratelimit/config"
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text(rules("a", 10 * version))
    os.symlink("v1", tmp_path / "current")
    env = {"RUNTIME_ROOT": str(tmp_path / "current"), "RUNTIME_SUBDIRECTORY": "ratelimit"}
    limit, _ = limit_of(None, env=env)
    assert limit("a") == 10
    os.symlink("v2", tmp_path / "new")
    os.replace(tmp_path / "new", tmp_path / "current")
    until(lambda: limit("a") == 20, "the swapped root")


def test_sighup_reads_everything_again(limit_of, tmp_path):
    (tmp_path / "a.yaml").write_text(rules("a", 10))
    limit, porteiro = limit_of(tmp_path)
    loads = lambda: porteiro.metric("ratelimit_service_config_load_success")
    before = loads()
    porteiro.send(signal.SIGHUP)
    until(lambda: loads() == before + 1, "one more load, although no file changed")
    assert limit("a") == 10


def test_a_broken_file_keeps_its_domain_and_only_that(limit_of, tmp_path):
    (tmp_path / "a.yaml").write_text(rules("a", 10))
    (tmp_path / "b.yaml").write_text(rules("b", 10))
    limit, porteiro = limit_of(tmp_path)
    (tmp_path / "a.yaml").write_text(rules("a", 20).replace("unit: year", "unit: yaer"))
    until(lambda: porteiro.metric("ratelimit_service_config_load_error"), "the failed load")
    (tmp_path / "b.yaml").write_text(rules("b", 20))
    until(lambda: limit("b") == 20, "the good file")
    assert limit("a") == 10, "the broken file left the old rules"
    assert "a.yaml:3" in porteiro.admin("/rules").body.decode(), "/rules shows the finding"
    (tmp_path / "a.yaml").write_text(rules("a", 30))
    until(lambda: limit("a") == 30, "the repaired file")
    assert "yaer" not in porteiro.admin("/rules").body.decode()


def test_what_was_used_outlives_a_reload(generated, serve, tmp_path):
    (tmp_path / "a.yaml").write_text(rules("a", 3))
    porteiro = serve(tmp_path)
    with rls.Client(porteiro.target) as client:
        ask = lambda: client.ask(rls.request("a", [("k", "used")])).statuses[0]
        assert [ask().limit_remaining for _ in range(2)] == [2, 1]
        (tmp_path / "a.yaml").write_text(rules("a", 10))
        probe = lambda: client.ask(rls.request("a", [("k", "other")])).statuses[0]
        until(lambda: probe().current_limit.requests_per_unit == 10, "the new limit")
        assert ask().limit_remaining == 7, "ten less the three that were used"
