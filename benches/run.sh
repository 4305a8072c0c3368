#!/usr/bin/env bash
# Measures everything and writes benches/RESULTS.md:
#
#     bash benches/run.sh [--quick] [NOTE]
#
# --quick takes fewer samples and rounds, for a first look. NOTE is what a reader of the results
# should know, such as what else the machine did.
#
# Needs Linux, Python 3 and h2load (Debian: nghttp2-client); where redis-server is there too,
# benches/redis.sh and benches/leases.py add their sections. Raw results stay in target/bench/.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v h2load >/dev/null || {
    echo "h2load is missing (Debian: nghttp2-client)" >&2
    exit 1
}

export CARGO_TERM_COLOR=never CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
raw=$CARGO_TARGET_DIR/bench
export PORTEIRO_BIN=$raw/porteiro
criterion=(--output-format bencher)
if [[ ${1:-} == --quick ]]; then
    # Its own --quick prints no names in this format.
    criterion+=(--warm-up-time 0.1 --measurement-time 0.3 --sample-size 10)
    export PORTEIRO_BENCH_ROUNDS=3 ROUNDS=3
    shift
fi
mkdir -p "$raw"

cargo build --locked --release
# A copy: beside the benches cargo builds the program with the features of the tests' dependencies.
cp "$CARGO_TARGET_DIR/release/porteiro" "$PORTEIRO_BIN"
cargo bench --locked --no-run --bench decision --bench memory
SECONDS=0

echo "the decision alone"
cargo bench --locked --bench decision -- "${criterion[@]}" | tee "$raw/decision.txt"
echo "memory"
cargo bench --locked --bench memory | tee "$raw/memory.txt"
echo "the wire"
python3 benches/wire.py >"$raw/wire.json"
echo "a flood of addresses"
python3 benches/flood.py >"$raw/flood.json"
rm -f "$raw/redis.md"
if command -v redis-server >/dev/null; then
    echo "counters in Redis"
    bash benches/redis.sh "$PORTEIRO_BIN" >"$raw/redis.md"
    echo >>"$raw/redis.md"
    python3 benches/leases.py >>"$raw/redis.md"
fi

# Not written in place: a file that is half-way there would make the version a changed one.
python3 benches/results.py "$raw" "${1:-}" >"$raw/RESULTS.md"
cp "$raw/RESULTS.md" benches/RESULTS.md
echo "benches/RESULTS.md, after $SECONDS s"
