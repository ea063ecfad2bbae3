#!/usr/bin/env bash
# Shows the effect of SMILE in minutes on a CPU, without any download:
#
#   bash scripts/demo.sh [--quick] [--seed 1] [key=value ...]
#
# Draws a captioned world, trains and fine-tunes small captioners on it, scores them and makes a
# report, in data/ and output/ of the folder where it is called. The same command continues a
# stopped demo.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

PYTHON_BIN="$(bash "$root/scripts/setup.sh")"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
exec "$PYTHON_BIN" -m captioning.demo "$@"
