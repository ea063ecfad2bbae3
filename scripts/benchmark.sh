#!/usr/bin/env bash
# Measures this project and its peers, which take turns in one run (Linux; see docs/benchmarks.md):
#
#   bash scripts/benchmark.sh [TOPIC ...] [--quick] [--rounds N] [--device cpu] [--output FOLDER]
#
# Topics: captioning, decoding, training, objective, loader. The default is all of them. Each topic
# prints a table and writes output/benchmarks/TOPIC.json. --quick uses tiny sizes and one round.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

topics=()
while [[ $# -gt 0 && $1 != -* ]]; do
    topics+=("$1")
    shift
done
((${#topics[@]})) || topics=(captioning decoding training objective loader)
PYTHON_BIN="$(bash "$root/scripts/setup.sh")"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
status=0
for topic in "${topics[@]}"; do
    "$PYTHON_BIN" -m benchmarks "$topic" "$@" || status=$?
done
exit "$status"
