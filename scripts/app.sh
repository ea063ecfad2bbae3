#!/usr/bin/env bash
# Opens a web page that captions photos with one or several checkpoints, side by side:
#
#   bash scripts/app.sh [CHECKPOINT ...] [--host 127.0.0.1] [--port 7860] [--config CONFIG]
#
# A checkpoint is a file, a run's folder, a URL or hf://. The default is the demo's checkpoints
# (bash scripts/demo.sh). See docs/app.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

PYTHON_BIN="$(bash "$root/scripts/setup.sh" app)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
exec "$PYTHON_BIN" -m app "$@"
