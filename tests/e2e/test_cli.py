"""`porteiro check` and the refusal to start: exit codes and where a finding points."""

import re

import pytest
import yaml

from support import ROOT, porteiro

CASES = yaml.safe_load((ROOT / "tests/cases/envoy-ratelimit.yaml").read_text())
MERGE = "--merge-domains"

EXIT_CONFIG = 64


def write(folder, files):
    for number, text in enumerate(files):
        (folder / f"{number}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("name", CASES["configs"])
def test_every_good_configuration_passes(tmp_path, name):
    done = porteiro.run("check", write(tmp_path, [CASES["configs"][name]]))
    assert done.returncode == 0, done.stdout + done.stderr
    # One file is as good as a directory.
    assert porteiro.run("check", tmp_path / "0.yaml").returncode == 0


@pytest.mark.parametrize("case", CASES["config_refused"], ids=lambda case: case["id"])
def test_every_refused_configuration_is_refused_with_its_place(tmp_path, case):
    flags = [MERGE] if case.get("merge") else []
    done = porteiro.run("check", *flags, write(tmp_path, case["files"]))
    said = done.stdout + done.stderr
    assert done.returncode == EXIT_CONFIG, said
    last = len(case["files"]) - 1
    assert re.search(rf"\b{last}\.yaml:[1-9]\d*\b", said), said


def test_one_domain_in_two_files(tmp_path):
    write(tmp_path, [CASES["configs"]["merge_a"], CASES["configs"]["merge_b"]])
    done = porteiro.run("check", tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == EXIT_CONFIG
    assert "0.yaml" in said and "1.yaml" in said, "both files are named"
    assert porteiro.run("check", MERGE, tmp_path).returncode == 0


def test_all_findings_come_at_once(tmp_path):
    write(
        tmp_path,
        [
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n"
            "  - value: v\n",
            "domain: b\ndescriptors:\n  - key: k\n    rate_limti: {unit: day, requests_per_unit: 1}\n",
        ],
    )
    done = porteiro.run("check", tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == EXIT_CONFIG
    for place in ("0.yaml:4", "0.yaml:5", "1.yaml:4"):
        assert place in said, said
    assert "rate_limit" in said, "a suggestion for the misspelled field"


def test_a_directory_is_read_as_documented(tmp_path):
    """Nested `*.yaml` and `*.yml`; not other endings, not dot entries."""
    good = "domain: {}\ndescriptors: []\n"
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/a.yml").write_text(good.format("a"))
    (tmp_path / "b.yaml").write_text(good.format("b"))
    for ignored in ("notes.txt", ".hidden.yaml", "b.yaml.bak", "deep/README.md"):
        (tmp_path / ignored).write_text("'not yaml")
    assert porteiro.run("check", tmp_path).returncode == 0
    (tmp_path / "deep/er/c.yml").write_text("'not yaml")
    done = porteiro.run("check", tmp_path)
    assert done.returncode == EXIT_CONFIG
    assert "c.yml:1" in done.stdout + done.stderr


def test_the_shipped_rules_pass():
    assert porteiro.run("check", ROOT / "deploy/envoy/rules.yaml").returncode == 0


def test_a_path_that_is_not_there(tmp_path):
    done = porteiro.run("check", tmp_path / "nowhere")
    assert done.returncode != 0
    assert "nowhere" in done.stdout + done.stderr


def test_a_broken_file_refuses_to_start(tmp_path):
    (tmp_path / "bad.yaml").write_text("domain: x\ndescriptors:\n  - value: v\n")
    addresses = [word for flag in ("--grpc", "--http", "--admin") for word in (flag, "127.0.0.1:0")]
    done = porteiro.run("serve", "--config", tmp_path, *addresses)
    assert done.returncode == EXIT_CONFIG
    assert "bad.yaml:3" in done.stdout + done.stderr


@pytest.mark.parametrize("words", [["--no-such-flag"], ["no-such-command"], ["serve", "--grpc", "x"]])
def test_wrong_words_are_refused_with_a_reason(words):
    done = porteiro.run(*words)
    assert done.returncode not in (0, 101)
    assert done.stderr


def test_the_help_says_what_each_subcommand_does():
    listed = re.search(r"^Commands:\n((?:  .*\n)+)", porteiro.run("--help").stdout, re.MULTILINE)
    about = dict(line.split(maxsplit=1) for line in listed.group(1).splitlines() if line[2] != " ")
    assert {"serve", "check"} <= set(about)
    for name, text in about.items():
        assert len(text.split()) >= 4, f"{name}: {text}"
