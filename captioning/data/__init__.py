"""Reads annotated images and makes batches of tensors and captions."""
