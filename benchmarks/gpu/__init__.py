"""One command that runs the checks and the topics that need a GPU, scripts/gpu.sh."""
