"""Downloads, reads, loads and writes checkpoints, without running code from them."""
