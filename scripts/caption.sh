#!/usr/bin/env bash
# Captions a photo, a folder, a list of images or tar shards with a checkpoint:
#
#   bash scripts/caption.sh CHECKPOINT INPUT --out captions.jsonl [--flag ...]
#
# CHECKPOINT is a run's folder or a file. docs/captioning.md has the flags. Called again, it goes on
# where it was stopped. Processes as in scripts/launch.sh.
set -euo pipefail

exec bash "$(dirname "$0")/launch.sh" captioning.caption "$@"
