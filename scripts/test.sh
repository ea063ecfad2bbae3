#!/usr/bin/env bash
# Checks the code's format, lints it and runs tests:
#
#   bash scripts/test.sh                      the quick tests, of every promise in docs/reliability.md
#   bash scripts/test.sh --all                all tests
#   bash scripts/test.sh --rest               only the tests that --all adds to the first
#   bash scripts/test.sh --all tests/smile    all tests in a folder
#   bash scripts/test.sh tests/smile -k name  only these tests: the arguments are pytest's
#
# Paths are relative to the folder where the script is called.
# The first takes minutes. bash scripts/soak.sh has tests that take longer.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON_BIN="$(bash "$root/scripts/setup.sh" dev)"
# Modules are compiled once, and not by every process that imports them.
unset PYTHONDONTWRITEBYTECODE

previous=""
for argument in "$@"; do # makes paths absolute, but not what follows an option, as in -k app
    [[ $previous == -[!-]* || $argument == /* || ! -e ${argument%%::*} ]] || argument="$PWD/$argument"
    set -- "${@:2}" "$argument"
    previous="$argument"
done
cd "$root"
case "${1:-}" in
    "") tests="not slow and not soak" ;;
    --all) tests="not soak" ;;
    --rest) tests="slow and not soak" ;;
    *) exec "$PYTHON_BIN" -m pytest "$@" ;;
esac

failed=()
if [[ ${1:-} != --rest ]]; then
    "$PYTHON_BIN" -m ruff format --check || failed+=("ruff format")
    "$PYTHON_BIN" -m ruff check || failed+=("ruff check")
fi
# Tests of a file run in the same process, since they share fixtures.
"$PYTHON_BIN" -m pytest -m "$tests" --numprocesses auto --maxprocesses 8 --dist loadfile "${@:2}" ||
    failed+=("pytest")
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
echo "passed"
