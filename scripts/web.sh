#!/usr/bin/env bash
# Builds a web page that captions photos in the browser, without a server, and serves it here:
#
#   bash scripts/web.sh [FOLDER ...]
#
# A folder is a run's. The default is the demo's three (bash scripts/demo.sh). output/web/ works from
# any static host. PORT chooses a port. Needs Node 20. See docs/web.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "error: Node is missing; install Node 20 or later, with npm, to build the page" >&2
    exit 2
fi
if ((!$#)); then
    set -- output/demo/mle output/demo/smile output/demo/mle_smile
fi
if (($# > 3)); then
    echo "error: $# folders; the page shows up to 3 checkpoints" >&2
    exit 2
fi
PYTHON_BIN="$(bash scripts/setup.sh dev)"
models=()
names=" "
for run in "$@"; do
    name="${run%/}"
    name="${name##*/}"
    case "$name" in
        mle) label="MLE" ;;
        smile) label="SMILE" ;;
        mle_smile) label="MLE+SMILE" ;;
        *) label="${name//=/_}" ;;
    esac
    name="${name//[^A-Za-z0-9_.-]/_}"
    if [[ $names == *" $name "* ]]; then
        echo "error: two folders are named $name; rename one" >&2
        exit 2
    fi
    names+="$name "
    folder="output/web_models/$name"
    "$PYTHON_BIN" -m BLIP.export "$run/checkpoint_best.pth" "$folder" --layout transformers.js
    models+=("$name=$label=$folder")
done
npm ci --prefix web --no-fund --no-audit --loglevel error
node web/build.mjs output/web "${models[@]}"
exec node web/serve.mjs output/web "${PORT:-7861}"
