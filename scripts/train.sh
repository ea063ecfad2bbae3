#!/usr/bin/env bash
# Fine-tunes a captioner with one process per GPU, or with a single process without a GPU:
#
#   bash scripts/train.sh [CONFIG] [key=value ...] [--flag ...]
#
# CONFIG is a YAML file, the first argument; default: configs/caption_coco.yaml. NPROC_PER_NODE,
# NNODES and RDZV_ENDPOINT set the processes and machines, see scripts/launch.sh.
#
# Relative paths start in the folder where the script is called. Only a CONFIG that is not there is
# looked for in the repository.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

config=configs/caption_coco.yaml
if [[ ${1:-} =~ \.ya?ml$ && ($1 != *=* || -f $1) ]]; then
    config="$1"
    shift
fi
[[ -e $config || ! -e $root/$config ]] || config="$root/$config"
exec bash "$root/scripts/launch.sh" "" captioning.train --config "$config" "$@"
