#!/usr/bin/env bash
# Builds a web page that captions photos in the browser, without a server, and serves it here:
#
#   bash scripts/web.sh [CHECKPOINT ...]
#
# A checkpoint is a run's folder, a file, a URL or hf://. The default is the demo's three
# (bash scripts/demo.sh). output/web/ works from any static host. PORT chooses a port; 0: any free
# one. Needs Node 20. See docs/web.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
fail() { echo "error: $*" >&2; exit 2; }

command -v npm >/dev/null || fail "npm is missing: install Node 20 or later to build the page"
(($#)) || set -- output/demo/mle output/demo/smile output/demo/mle_smile
PYTHON_BIN="$(bash "$root/scripts/setup.sh" dev)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1

packages="$root/web/node_modules"
npm ci --prefix "$root/web" --no-fund --no-audit --loglevel error >&2
models=output/web/models.new # replaces the page's models when all are there
rm -rf "$models"
mkdir -p "$models" output/web/vendor
cp "$root"/web/page/* output/web
cp "$packages"/@huggingface/transformers/dist/transformers.min.js \
    "$packages"/onnxruntime-web/dist/ort-wasm-simd-threaded.asyncify.{mjs,wasm} output/web/vendor
names=""
for checkpoint in "$@"; do
    name="$(basename "$checkpoint" .pth | tr -c 'A-Za-z0-9_.\n-' _)"
    [[ ! -e $models/$name ]] || fail "two checkpoints are named $name: rename one"
    [[ ! -e $checkpoint/checkpoint_best.pth ]] || checkpoint="${checkpoint%/}/checkpoint_best.pth"
    echo "exporting $checkpoint" >&2
    "$PYTHON_BIN" -m BLIP.export "$checkpoint" "$models/$name/new" >/dev/null
    # Browsers keep a model's files, and ask for them again if the name has changed.
    version="$(cat "$models/$name"/new/{onnx/*,*.json} | cksum | cut -d ' ' -f 1)"
    mv "$models/$name/new" "$models/$name/$version"
    names+="${names:+, }\"$name/$version\""
done
rm -rf output/web/models
mv "$models" output/web/models
echo "[$names]" >output/web/models.json
exec "$PYTHON_BIN" "$root/web/serve.py" output/web "${PORT:-7861}"
