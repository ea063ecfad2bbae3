"""The system: training, evaluation, bulk captioning and everything around them."""
