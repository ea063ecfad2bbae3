#!/usr/bin/env bash
# Fine-tunes a captioner with one process per GPU, or with a single process without a GPU:
#
#   bash scripts/train.sh [CONFIG] [key=value ...] [--flag ...]
#
# CONFIG is a YAML file, the first argument; default: configs/caption_coco.yaml.
#
#   NPROC_PER_NODE   processes on this machine (default: one per GPU; one if a device is given)
#   NNODES           machines (default 1); run the same command on each machine
#   RDZV_ENDPOINT    host:port, one of the machines and a free port on it
#   RDZV_ID          name of the run, needed if several runs share a port (default smile)
#
# Relative paths start in the folder where the script is called. Only a CONFIG that is not there is
# looked for in the repository.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

config=configs/caption_coco.yaml
if [[ ${1:-} =~ ^[^=]*\.ya?ml$ ]]; then
    config="$1"
    shift
fi
[[ -e $config || ! -e $root/$config ]] || config="$root/$config"
program=(-m captioning.train --config "$config" "$@")

PYTHON_BIN="$(bash "$root/scripts/setup.sh")"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1
nodes="${NNODES:-1}"
if [[ -n ${NPROC_PER_NODE:-} || " $* " =~ [[:space:]](--device|device=) ]]; then
    processes="${NPROC_PER_NODE:-1}"
else
    processes=1
    # Looks for files of the drivers (NVIDIA, AMD, Windows) first, since asking torch takes seconds.
    if [[ -e /dev/nvidiactl || -e /proc/driver/nvidia || -e /dev/kfd || -e /dev/dxg ]] ||
        command -v nvidia-smi >/dev/null; then
        processes="$("$PYTHON_BIN" -c 'import torch; print(max(1, torch.cuda.device_count()))')"
    fi
fi

if [[ $nodes == 1 && $processes == 1 ]]; then
    exec "$PYTHON_BIN" "${program[@]}"
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
    "${rendezvous[@]}" "${program[@]}"
