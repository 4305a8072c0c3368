#!/usr/bin/env bash
# What a call costs when counters are in Redis, and what Redis could do at the most:
#
#     bash benches/redis.sh [PORTEIRO]
#
# Prints a section for benches/RESULTS.md. Needs Linux, Python 3, redis-server, redis-benchmark and
# h2load (Debian: redis, nghttp2-client). Everything is on loopback and ended afterwards.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for tool in redis-server redis-benchmark redis-cli h2load python3; do
    command -v "$tool" >/dev/null || {
        echo "$tool is missing" >&2
        exit 1
    }
done
export PORTEIRO_BIN=${1:-${CARGO_TARGET_DIR:-target}/release/porteiro}
exec python3 benches/redis.py
