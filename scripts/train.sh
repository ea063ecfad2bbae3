#!/usr/bin/env bash
# Fine-tunes a captioner:
#
#   bash scripts/train.sh [CONFIG] [key=value ...] [--flag ...]
#
# CONFIG is a YAML file, configs/caption_coco.yaml unless one is given first. One process a GPU;
# scripts/launch.sh tells how to have others, or several machines.
set -euo pipefail

config=configs/caption_coco.yaml
if [[ ${1:-} =~ ^[^=]*\.ya?ml$ ]]; then
    config="$1"
    shift
fi
exec bash "$(dirname "$0")/launch.sh" captioning.train --config "$config" "$@"
