#!/usr/bin/env bash
# Checks and measures all GPU code, on one machine with a GPU (Linux; no network needed):
#
#   bash scripts/gpu.sh [--rehearse] [PART ...]
#
# The parts are "checks", the tests in tests/gpu, and the topics of scripts/benchmark.sh. --rehearse
# runs them on the CPU, in tiny sizes. Environment variables:
#
#   LIMIT_S=480        for all parts together
#   OUT=output/gpu     for log.txt, all that is printed, and TOPIC.json. Nothing else is written.
#   PYTHON=python      needs pytest; by default the PATH's, for example of a container image
#   WHEELS=FOLDER      of packages that this Python lacks. They are installed for this call.
#
# The exit status is 1 if anything failed or had no time. See docs/benchmarks.md.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="${PYTHON:-$(command -v python || command -v python3)}"
[[ $PYTHON != */* ]] || PYTHON="$(realpath -s "$PYTHON")"
OUT="$(realpath -m "${OUT:-$root/output/gpu}")"

temporary="$(mktemp -d)"
trap 'rm -rf "$temporary"' EXIT
mkdir -p "$OUT"
exec > >(tee "$OUT/log.txt") 2>&1

PYTHONUSERBASE="$("$PYTHON" -m site --user-base || true)" # otherwise in HOME, which changes
export PYTHONUSERBASE PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export HOME="$temporary" XDG_CACHE_HOME="$temporary"
export TRITON_CACHE_DIR="$temporary" TORCHINDUCTOR_CACHE_DIR="$temporary"
if [[ -n ${WHEELS:-} ]]; then
    "$PYTHON" -m pip install -q --no-index --no-deps --target "$temporary/site" "$WHEELS"/*.whl
    PYTHONPATH="$PYTHONPATH:$temporary/site"
fi

quick=()
if [[ ${1:-} == --rehearse ]]; then
    shift
    quick=(--quick)
    export GPU_REHEARSAL=1 CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1
    export TORCHDYNAMO_DISABLE=1 # compilation would take longer than everything else
elif ! "$PYTHON" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    echo "error: there is no CUDA GPU that torch can use; --rehearse runs on the CPU"
    exit 2
fi

# Slow parts come last. A part gets its share of the time that is left, and checks half of it.
(($#)) || set -- checks objective loader decoding training captioning
end=$((SECONDS + ${LIMIT_S:-480}))
results=() failed=0
cd "$root"
while (($#)); do
    left=$((end - SECONDS))
    limit=$((left / $#))
    program=(benchmarks "$1" --output "$OUT" "${quick[@]}")
    if [[ $1 == checks ]]; then
        program=(pytest tests/gpu --confcutdir tests/gpu -rP -p no:cacheprovider)
        program+=(--basetemp "$temporary/tests")
        (($# == 1)) || limit=$((left / 2))
    fi
    code=0
    ((limit > 0)) || code=124
    ((code)) || timeout --kill-after 10 "$limit" "$PYTHON" -m "${program[@]}" || code=$?
    case $code in
        0) results+=("$1 done") ;;
        124) results+=("$1 FAILED: its time, $limit s, was over") ;;
        *) results+=("$1 FAILED with $code") ;;
    esac
    ((code == 0)) || failed=1
    shift
done
printf '%s\n' "${results[@]}"
exit "$failed"
