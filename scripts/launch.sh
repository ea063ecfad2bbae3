#!/usr/bin/env bash
# Runs a program with one process per GPU, or with a single process without a GPU:
#
#   bash scripts/launch.sh REQUIREMENTS MODULE [argument ...]
#
# REQUIREMENTS is setup.sh's argument. scripts/train.sh and scripts/caption.sh call this.
#
#   NPROC_PER_NODE   processes on this machine (default: one per GPU; one if a device is given)
#   NNODES           machines (default 1); run the same command on each machine
#   RDZV_ENDPOINT    host:port, one of the machines and a free port on it
#   RDZV_ID          name of the run, needed if several runs share a port (default smile)
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

PYTHON_BIN="$(bash "$root/scripts/setup.sh" "$1")"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
shift
nodes="${NNODES:-1}" processes="${NPROC_PER_NODE:-}"
if [[ -z $processes ]]; then
    processes=1
    words=$'\n'"$(printf '%s\n' "$@")"$'\n' # a word a line: a text may have any words in it
    # Looks for files of the drivers (NVIDIA, AMD, Windows) first, since asking torch takes seconds.
    if [[ ! $words =~ $'\n'(--device|device=|--url|--engine[=$'\n']ray$'\n') ]] &&
        { [[ -e /dev/nvidiactl || -e /proc/driver/nvidia || -e /dev/kfd || -e /dev/dxg ]] ||
            command -v nvidia-smi >/dev/null; }; then
        processes="$("$PYTHON_BIN" -c 'import torch; print(max(1, torch.cuda.device_count()))')"
    fi
fi
if [[ $nodes == 1 && $processes == 1 ]]; then
    exec "$PYTHON_BIN" -m "$@"
fi

# By default each process starts one thread per core, and the processes' threads compete.
cores="$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores > processes ? cores / processes : 1))}"

rendezvous=(--standalone)
if [[ $nodes != 1 ]]; then
    if [[ -z ${RDZV_ENDPOINT:-} ]]; then
        echo "error: NNODES=$nodes needs RDZV_ENDPOINT=host:port, the same on every machine" >&2
        exit 2
    fi
    rendezvous=(--rdzv_backend c10d --rdzv_endpoint "$RDZV_ENDPOINT" --rdzv_id "${RDZV_ID:-smile}")
fi
exec "$PYTHON_BIN" -m captioning.launch --nnodes "$nodes" --nproc_per_node "$processes" \
    "${rendezvous[@]}" -m "$@"
