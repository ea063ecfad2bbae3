"""What a GPU is needed for: checked and measured by one command, scripts/gpu.sh."""
