"""Fine-tunes captioners: training loop, step, checkpoints, resumption, validation and log."""
