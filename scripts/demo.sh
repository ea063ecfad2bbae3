#!/usr/bin/env bash
# Shows the effect of SMILE in minutes on a CPU, without any download:
#
#   bash scripts/demo.sh [--quick] [--seed 1] [key=value ...]
#
# Draws a captioned world, trains and fine-tunes small captioners on it, scores them and makes a
# report. The same command continues a stopped demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON_BIN="$(bash scripts/setup.sh)"
exec "$PYTHON_BIN" -m captioning.demo "$@"
