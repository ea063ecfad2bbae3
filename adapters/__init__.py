"""Low-rank layers beside the frozen weights of a captioner, made by peft."""
