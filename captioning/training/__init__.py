"""Fine-tuning: the loop, its step, checkpoints, resume, validation and the log."""
