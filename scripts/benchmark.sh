#!/usr/bin/env bash
# Measures this project and its peers, which take turns in one run (Linux; see docs/benchmarks.md):
#
#   bash scripts/benchmark.sh [TOPIC ...] [--quick]
#
# Topics: captioning, decoding, training, objective, loader. The default is all of them. Each topic
# prints a table and writes output/benchmarks/TOPIC.json. --quick uses tiny sizes and one round.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON_BIN="$(bash scripts/setup.sh)"
exec "$PYTHON_BIN" -m benchmarks "$@"
