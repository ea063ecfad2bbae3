"""Computes rewards of sampled captions: one reward per file."""
