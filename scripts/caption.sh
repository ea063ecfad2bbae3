#!/usr/bin/env bash
# Captions photos, folders, lists of images or tar shards, with one process per GPU:
#
#   bash scripts/caption.sh CHECKPOINT INPUT ... --out captions.jsonl [key=value ...] [--flag ...]
#
# CHECKPOINT is a run's folder or a file; docs/captioning.md describes both. The same command
# continues a stopped run. NPROC_PER_NODE and NNODES set processes, see scripts/launch.sh.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

requirements=""
words=$'\n'"$(printf '%s\n' "$@")"$'\n' # a word a line: a text may have any words in it
if [[ $words =~ $'\n'--engine[=$'\n']ray$'\n' ]]; then
    requirements=cluster # includes Ray
fi
exec bash "$root/scripts/launch.sh" "$requirements" captioning.caption "$@"
