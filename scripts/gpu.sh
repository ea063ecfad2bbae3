#!/usr/bin/env bash
# Checks and measures all GPU code, on one machine with a GPU (Linux; no network needed):
#
#   bash scripts/gpu.sh [--rehearse] [--wheels DIR] [--out DIR] [--only PART ...] [--minutes 8]
#
# It uses the Python on the PATH, for example of a PyTorch container image (PYTHON=/path/to/python
# for another). It installs nothing there and writes only to --out (output/gpu), besides temporary
# files. --rehearse does the same with tiny sizes on the CPU. Each part prints its checks and times
# and writes PART.json. The exit status is 1 if anything failed or had no time. See
# docs/benchmarks.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

PYTHON="${PYTHON:-$(command -v python || command -v python3)}"
export PYTHONDONTWRITEBYTECODE="${PYTHONDONTWRITEBYTECODE:-1}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
exec "$PYTHON" -m benchmarks.gpu "$@"
