#!/usr/bin/env bash
# Captions a split with a checkpoint and scores the captions:
#
#   bash scripts/eval.sh [CONFIG] [key=value ...] [--eval_split val] [--flag ...]
#
# CONFIG is a YAML file, the first argument; default: configs/caption_coco.yaml. The default split
# is test; EVAL_SPLIT or --eval_split choose another. Processes are started as in scripts/train.sh.
set -euo pipefail

config=configs/caption_coco.yaml
if [[ ${1:-} =~ \.ya?ml$ && ($1 != *=* || -f $1) ]]; then
    config="$1"
    shift
fi
# If --eval_split is given twice, the last one counts. The user's comes after this one.
exec bash "$(dirname "$0")/train.sh" "$config" --evaluate --eval_split "${EVAL_SPLIT:-test}" "$@"
