"""The program of scripts/gpu.sh, which runs all checks and topics that need a GPU."""
