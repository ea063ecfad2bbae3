"""Checkpoints: downloaded, read without running what is in them, loaded without losing a key."""
