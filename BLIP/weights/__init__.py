"""Downloads and reads checkpoints without running code from them, and loads every key."""
