#!/usr/bin/env bash
# Runs what takes too long for scripts/test.sh: whole demos and benchmarks, set-up by pip, kills at
# random instants. Then kills, stops and starves tiny runs, and counts what they survived:
#
#   bash scripts/soak.sh                                    100 kills, disks, 15 minutes at random
#   bash scripts/soak.sh --kills 10 --seconds 60 --disks 4  less of each; 0 skips a kind
#
# docs/reliability.md says what is promised. Tests of full disks need root, to mount small disks.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON_BIN="$(bash "$root/scripts/setup.sh" dev)"
cd "$root"
unset PYTHONDONTWRITEBYTECODE
status=0
"$PYTHON_BIN" -m pytest -m soak --numprocesses auto --maxprocesses 8 --dist loadfile || status=1
"$PYTHON_BIN" -m tests.soak "$@" || status=1
exit "$status"
