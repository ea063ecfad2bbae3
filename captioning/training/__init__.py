"""Fine-tuning: the loop and its step, resume, validation, the evidence of what went wrong."""
