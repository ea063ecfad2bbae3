"""Checkpoints: downloaded, read without running their code, loaded without losing a key."""
