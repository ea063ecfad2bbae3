#!/usr/bin/env bash
# Captions a split with a checkpoint and scores the captions:
#
#   bash scripts/eval.sh [CONFIG] [key=value ...] [--eval_split val] [--flag ...]
#
# CONFIG is a YAML file, configs/caption_coco.yaml unless one is given first. The split is test, or
# the one that EVAL_SPLIT or --eval_split names. Processes are as in scripts/train.sh.
set -euo pipefail

config=configs/caption_coco.yaml
if [[ ${1:-} =~ ^[^=]*\.ya?ml$ ]]; then
    config="$1"
    shift
fi
# The last of two --eval_split counts: the user's comes after this one.
exec bash "$(dirname "$0")/train.sh" "$config" --evaluate --eval_split "${EVAL_SPLIT:-test}" "$@"
