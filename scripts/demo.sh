#!/usr/bin/env bash
# Trains and scores a small captioner on drawn scenes, without any download, in minutes on a CPU:
#
#   bash scripts/demo.sh [key=value ...]
#
# Goes through the same steps as a run on COCO: data, scripts/train.sh, scripts/eval.sh, whose last
# line tells where the captions are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON_BIN="$(bash scripts/setup.sh)"
"$PYTHON_BIN" -m captioning.scenes --output data/scenes
bash scripts/train.sh configs/caption_scenes.yaml "$@"
bash scripts/eval.sh configs/caption_scenes.yaml "$@"
