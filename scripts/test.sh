#!/usr/bin/env bash
# Checks the code's format, lints it and runs the tests:
#
#   bash scripts/test.sh                      everything, as CI does
#   bash scripts/test.sh tests/smile -k name  only these tests: the arguments are pytest's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON_BIN="$(bash scripts/setup.sh dev)"
if (($#)); then
    exec "$PYTHON_BIN" -m pytest "$@"
fi

failed=()
"$PYTHON_BIN" -m ruff format --check || failed+=("ruff format")
"$PYTHON_BIN" -m ruff check || failed+=("ruff check")
# Tests of a file run in the same process, since they share fixtures.
"$PYTHON_BIN" -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile || failed+=("pytest")
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
echo "passed: ruff format, ruff check, pytest"
