#!/usr/bin/env bash
# Shows what SMILE does, without any download, in minutes on a CPU:
#
#   bash scripts/demo.sh [--quick] [--seed 1] [key=value ...]
#
# Draws a captioned world, trains and fine-tunes small captioners on it, scores them and makes a
# report. Called again, it goes on where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON_BIN="$(bash scripts/setup.sh)"
exec "$PYTHON_BIN" -m captioning.demo "$@"
