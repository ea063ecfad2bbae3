#!/usr/bin/env bash
# Captions a photo, a folder, a list of images or tar shards with a checkpoint:
#
#   bash scripts/caption.sh CHECKPOINT INPUT --out captions.jsonl [--flag ...]
#
# CHECKPOINT is a run's folder or a file. docs/captioning.md has the flags. The same command
# continues a stopped run.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

if [[ ${NNODES:-1} != 1 || ${NPROC_PER_NODE:-1} != 1 ]]; then
    echo "error: NNODES and NPROC_PER_NODE are for training; to caption in several processes use --engine ray" >&2
    exit 2
fi
requirements=""
if [[ " $* " =~ [[:space:]]--engine[[:space:]=]ray[[:space:]] ]]; then
    requirements=cluster # includes Ray
fi
PYTHON_BIN="$(bash "$root/scripts/setup.sh" "$requirements")"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
exec "$PYTHON_BIN" -m captioning.caption "$@"
