#!/usr/bin/env bash
# Makes the files of exact versions anew that scripts/setup.sh takes by default:
#
#   bash scripts/lock.sh [PYTHON ...]    (default: python3.9 python3.11, the two that CI tests)
#
# For each interpreter the newest versions that requirements-dev.txt allows are installed into an
# environment that is removed again, and written to requirements-lock-py3.X.txt. The files name the
# packages of Linux x86-64, so they are made there; elsewhere pip passes over what is not needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $(uname -sm) == "Linux x86_64" ]] || {
    echo "error: the files of versions are made on Linux x86-64, and this is $(uname -sm)" >&2
    exit 1
}
(($#)) || set -- python3.9 python3.11
folder="$(mktemp -d "${TMPDIR:-/tmp}/smile-lock.XXXXXX")"
trap 'rm -rf "$folder"' EXIT

for python in "$@"; do
    interpreter="$(LATEST=1 PYTHON="$python" VENV="$folder/environment" bash scripts/setup.sh dev)"
    version="$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    lock="requirements-lock-py$version.txt"
    {
        echo "# The versions that are tested together on Python $version. Made by: bash scripts/lock.sh"
        "$interpreter" scripts/check_requirements.py --versions requirements-dev.txt
    } >"$folder/lock"
    cp "$folder/lock" "$lock"
    rm -rf "$folder/environment"
    echo "wrote $lock"
done
