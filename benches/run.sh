#!/usr/bin/env bash
# Measures everything and writes benches/RESULTS.md, in about six minutes after the build:
#
#     bash benches/run.sh [--quick]
#
# --quick takes fewer samples and rounds, for a first look.
#
# Needs Linux, Python 3 and h2load (Debian: nghttp2-client). Raw results stay in target/bench/.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v h2load >/dev/null || {
    echo "h2load is missing (Debian: nghttp2-client)" >&2
    exit 1
}

export CARGO_TERM_COLOR=never CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export PORTEIRO_BIN=$CARGO_TARGET_DIR/release/porteiro
raw=$CARGO_TARGET_DIR/bench
criterion=(--output-format bencher)
if [[ ${1:-} == --quick ]]; then
    criterion+=(--quick)
    export PORTEIRO_BENCH_ROUNDS=3
fi
mkdir -p "$raw"

cargo build --locked --release
cargo bench --locked --no-run
SECONDS=0

echo "the decision alone"
cargo bench --locked --bench decision -- "${criterion[@]}" | tee "$raw/decision.txt"
echo "memory"
cargo bench --locked --bench memory | tee "$raw/memory.txt"
echo "the wire"
python3 benches/wire.py >"$raw/wire.json"

python3 benches/results.py "$raw" >benches/RESULTS.md
echo "benches/RESULTS.md, after $SECONDS s"
