#!/usr/bin/env bash
# Runs a module of the project in as many processes as there are GPUs, or in one without a GPU:
#
#   bash scripts/launch.sh MODULE [ARGUMENT ...]
#
#   NPROC_PER_NODE   processes on this machine (default: one a GPU, or one on a device that is named)
#   NNODES           machines (default 1); started on each of them with the same
#   RDZV_ENDPOINT    host:port, one of the machines and a free port of it
#   RDZV_ID          name of the run, where several meet at one port (default smile)
#
# It runs in the repository's root, wherever it is called from: relative paths start there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON_BIN="$(bash scripts/setup.sh)"
nodes="${NNODES:-1}"
if [[ -n ${NPROC_PER_NODE:-} || " $* " =~ [[:space:]](--device|device=) ]]; then
    processes="${NPROC_PER_NODE:-1}"
else
    processes=1
    # What NVIDIA's, AMD's and Windows' drivers put there; to ask torch takes seconds.
    if [[ -e /dev/nvidiactl || -e /proc/driver/nvidia || -e /dev/kfd || -e /dev/dxg ]] ||
        command -v nvidia-smi >/dev/null; then
        processes="$("$PYTHON_BIN" -c 'import torch; print(max(1, torch.cuda.device_count()))')"
    fi
fi

if [[ $nodes == 1 && $processes == 1 ]]; then
    exec "$PYTHON_BIN" -m "$@"
fi

# Without it each process starts a thread for every core, and they wait for one another.
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
