#!/usr/bin/env bash
# Checks and measures everything that is for a GPU, on one machine with one (Linux; no network):
#
#   bash scripts/gpu.sh [--rehearse] [--wheels DIR] [--out DIR] [--only PART ...] [--minutes 8]
#
# It takes the Python on the PATH (PYTHON=/path/to/python for another), as a PyTorch image has it,
# sets nothing up and writes to --out alone (output/gpu). --rehearse does the same at tiny sizes on
# the CPU. It ends with a table, gpu.json, and 1 where a check has failed. See docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON="${PYTHON:-$(command -v python || command -v python3)}"
export PYTHONDONTWRITEBYTECODE="${PYTHONDONTWRITEBYTECODE:-1}"
exec "$PYTHON" -m benchmarks.gpu "$@"
