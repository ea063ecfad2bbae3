"""Fine-tuning: the training loop, its step, checkpoints, resumption, validation and the log."""
