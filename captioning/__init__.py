"""Training, evaluation, bulk captioning, reports, and the programs for them."""
